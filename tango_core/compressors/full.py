"""Full: keep every visual token, the reference that all methods are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Full(Compressor):
    """Keep every token; also the compressor of methods that act only inside the model.

    Attributes:
        retention: Always 1; not an option.
    """

    retention: float = field(default=1.0, init=False)

    def _plan(self, features: VisualFeatures) -> Combination:
        """All tokens, in order."""
        return keep(features, torch.arange(features.tokens.shape[:2].numel()))
