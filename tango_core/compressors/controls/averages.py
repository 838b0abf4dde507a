"""Plans whose kept tokens are plain averages that follow from the clip's shape alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination
from tango_core.types import VisualFeatures

# Shapes of clips whose averages are remembered; clips of one data set have few.
REMEMBERED = 32


@dataclass(frozen=True, eq=False)
class Averages:
    """Which tokens of every clip of one shape are averaged, on the host.

    Attributes:
        kept: (K,) int64 ascending flat positions of the averages.
        sources: (N,) int64 flat positions that are averaged, those of one average together.
        offsets: (K + 1,) int64 first source of every average, and N.
        weights: (N,) float32.
    """

    kept: Tensor
    sources: Tensor
    offsets: Tensor
    weights: Tensor

    def plan(self, features: VisualFeatures) -> Combination:
        """The plan for a clip of that shape."""
        device = features.tokens.device
        return Combination(
            # Tokens carry these positions, and whoever has the tokens may write to them.
            indices=self.kept.to(device, copy=True),
            grid=(len(features.tokens), *features.grid),
            timestamps=features.timestamps,
            offsets=self.offsets.to(device),
            sources=self.sources.to(device),
            weights=self.weights.to(device),
        )


def averages(kept: Tensor, sources: Tensor, counts: Tensor) -> Averages:
    """Average tokens.

    Args:
        kept: See `Averages`.
        sources: See `Averages`.
        counts: (K,) int64, how many sources each has; adding up to N.
    """
    offsets = F.pad(counts.cumsum(0), (1, 0))
    return Averages(kept, sources, offsets, (1 / counts).repeat_interleave(counts))
