"""PoolTime: average equal stretches of frames, place by place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.controls.averages import REMEMBERED, Averages, averages
from tango_core.compressors.controls.frames import FrameControl
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class PoolTime(FrameControl):
    """Average F = max(1, round(retention * T)) groups of consecutive frames at every place.

    Group i of F is frames floor(i * T / F) to floor((i + 1) * T / F), the last one not included;
    its tokens stand at the frame in its middle, the earlier of two. A clip of one frame keeps
    everything.

    Attributes:
        retention: Share of the frames to keep, in (0, 1].
        budget: Both are the nearest whole number of frames.
    """

    entry_name: ClassVar[str] = "pool_time"

    budget: Literal["official", "exact"] = "official"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Average group after group."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        kept = self.num_frames_kept(num_frames)
        return _grouped(num_frames, tokens_per_frame, kept).plan(features)


@lru_cache(REMEMBERED)
def _grouped(num_frames: int, tokens_per_frame: int, kept: int) -> Averages:
    """What becomes of T frames of L tokens in so many groups."""
    bounds = [index * num_frames // kept for index in range(kept + 1)]
    places = torch.arange(num_frames * tokens_per_frame).view(num_frames, tokens_per_frame)
    groups = [places[first:last] for first, last in pairwise(bounds)]
    counts = torch.tensor([len(group) for group in groups])
    return averages(
        torch.cat([group[(len(group) - 1) // 2] for group in groups]),
        torch.cat([group.T.flatten() for group in groups]),
        counts.repeat_interleave(tokens_per_frame),
    )
