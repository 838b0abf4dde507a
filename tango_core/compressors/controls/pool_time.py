"""PoolTime: average equal stretches of frames, place by place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tango_core.compressors.controls.frames import FrameControl
from tango_core.types import CompressedVideo, VisualFeatures


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

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Average group after group in float32."""
        tokens = features.tokens
        num_frames, tokens_per_frame, dim = tokens.shape
        kept = self.num_frames_kept(num_frames)
        bounds = [index * num_frames // kept for index in range(kept + 1)]
        means = tokens.new_empty(kept, tokens_per_frame, dim)
        for group in range(kept):
            frames = tokens[bounds[group] : bounds[group + 1]]
            means[group] = frames.mean(dim=0, dtype=torch.float32).to(tokens.dtype)
        middles = (torch.tensor(bounds[:-1]) + torch.tensor(bounds[1:]) - 1) // 2
        places = middles[:, None] * tokens_per_frame + torch.arange(tokens_per_frame)
        return CompressedVideo(
            tokens=means.flatten(0, 1),
            indices=places.flatten().to(tokens.device),
            grid=(num_frames, *features.grid),
            timestamps=features.timestamps,
        )
