"""Plans whose kept tokens are plain averages that follow from the clip's shape alone."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination
from tango_core.types import VisualFeatures


def averages(
    features: VisualFeatures, kept: Tensor, sources: Tensor, counts: Tensor
) -> Combination:
    """Average tokens, given on the host.

    Args:
        features: The clip.
        kept: (K,) int64 ascending flat positions of the averages.
        sources: (N,) int64 flat positions that are averaged, those of one average together.
        counts: (K,) int64, how many they are for each; adding up to N.
    """
    device = features.tokens.device
    return Combination(
        indices=kept.to(device),
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
        offsets=F.pad(counts.cumsum(0), (1, 0)).to(device),
        sources=sources.to(device),
        weights=(1 / counts).repeat_interleave(counts).to(device),
    )
