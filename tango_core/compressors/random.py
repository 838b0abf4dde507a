"""Random: keep a seeded uniform sample of the visual tokens, the lower baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep, num_kept
from tango_core.compressors.options import raise_if_below
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Random(Compressor):
    """Keep `round(retention * T * L)` tokens drawn without replacement.

    The draw depends on the seed and on T * L alone, so every clip of one shape keeps the same
    positions, on any device.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        seed: Seed of the draw, 0 or larger.
        budget: `"exact"`, the only one: said so that a recipe may ask every method for it.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"budget": "exact"}

    seed: int = 0
    budget: Literal["exact"] = "exact"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_below(self, 0, "seed")

    def _plan(self, features: VisualFeatures) -> Combination:
        """Draw on the CPU, where the generator gives the same numbers on every machine."""
        total = features.tokens.shape[0] * features.tokens.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(total, generator=generator)[: num_kept(total, self.retention)]
        return keep(features, drawn.sort().values)
