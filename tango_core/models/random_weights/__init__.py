"""Checkpoints with random weights and the geometry of published models, in their files' layout.

Nobody needs a hub or a download to see how large a model is in memory, how long it loads, and where
its time goes: none of that depends on what the weights are. The answers of such a model mean
nothing, and its note says so in every result.

May import the families, to read the configuration that it has written.
"""

from tango_core.models.random_weights.checkpoint import write_random_checkpoint
from tango_core.models.random_weights.geometry import GEOMETRIES, Geometry

__all__ = ["GEOMETRIES", "Geometry", "write_random_checkpoint"]
