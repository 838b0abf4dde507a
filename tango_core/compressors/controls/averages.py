"""Plans whose kept tokens are plain averages that follow from the clip's shape alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tango_core.combination import Combination
from tango_core.types import VisualFeatures


def averages(features: VisualFeatures, kept: Tensor, averaged: Sequence[Tensor]) -> Combination:
    """Average cells of a frame or of a clip.

    Args:
        features: The clip.
        kept: (K,) int64 ascending flat positions.
        averaged: K tensors of flat positions, (n,) int64 each: what becomes of them stands at the
            kept position.
    """
    counts = torch.tensor([len(part) for part in averaged])
    device = features.tokens.device
    return Combination(
        indices=kept.to(device),
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
        offsets=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(device),
        sources=torch.cat(list(averaged)).to(device),
        weights=(1 / counts).repeat_interleave(counts).to(device),
    )


def in_every_frame(cells: Sequence[Tensor], num_frames: int, tokens_per_frame: int) -> list[Tensor]:
    """Flat positions of the same cells in every frame, frame after frame."""
    starts = range(0, num_frames * tokens_per_frame, tokens_per_frame)
    return [part + start for start in starts for part in cells]
