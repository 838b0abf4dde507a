"""Uniform: keep visual tokens at even steps, a baseline that ignores the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep, num_kept
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Uniform(Compressor):
    """Keep `round(retention * T * L)` tokens at even steps in raster order, frame after frame.

    Token i of K sits at the middle of the i-th of K equal stretches of the flat sequence, in
    integer arithmetic, so the positions are distinct and symmetric for every shape.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"exact"`, the only one: said so that a recipe may ask every method for it.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"budget": "exact"}

    budget: Literal["exact"] = "exact"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Take the middle of every stretch."""
        total = features.tokens.shape[0] * features.tokens.shape[1]
        kept = num_kept(total, self.retention)
        middles = (2 * torch.arange(kept) + 1) * total
        return keep(features, torch.div(middles, 2 * kept, rounding_mode="floor"))
