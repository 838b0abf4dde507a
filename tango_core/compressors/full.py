"""Full: keep every visual token, the reference that all methods are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tango_core.compressors.base import Compressor, everything
from tango_core.types import CompressedVideo, VisualFeatures


@dataclass(frozen=True)
class Full(Compressor):
    """Keep every token; also the compressor of methods that act only inside the model.

    Attributes:
        retention: Always 1; not an option.
    """

    retention: float = field(default=1.0, init=False)

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """All tokens, in order."""
        return everything(features)
