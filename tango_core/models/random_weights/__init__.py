"""Checkpoints with random weights and the geometry of published models, in their files' layout.

They allow measurements of memory, load time and latency without a hub or a download, because these
do not depend on the values of the weights. The answers of such a model are meaningless, which its
note states in every result.

May import the families, to read the configuration that it has written.
"""

from tango_core.models.random_weights.checkpoint import write_random_checkpoint
from tango_core.models.random_weights.geometry import GEOMETRIES, Geometry

__all__ = ["GEOMETRIES", "Geometry", "write_random_checkpoint"]
