"""FewerFrames: keep all tokens of some evenly spaced frames, as if fewer had been sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import keep
from tango_core.compressors.controls.frames import FrameControl
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class FewerFrames(FrameControl):
    """Keep all tokens of F = max(1, round(retention * T)) frames, unchanged.

    Frame i of F is floor(i * (T - 1) / (F - 1)), the rule by which frames are sampled from a file;
    one frame is the first. On models that encode every frame for itself this equals decoding fewer
    of these frames. A clip of one frame keeps everything.

    Attributes:
        retention: Share of the frames to keep, in (0, 1].
        budget: Both are the nearest whole number of frames.
    """

    entry_name: ClassVar[str] = "fewer_frames"

    budget: Literal["official", "exact"] = "official"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Take whole frames."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        kept = self.num_frames_kept(num_frames)
        frames = torch.arange(kept) * (num_frames - 1) // max(1, kept - 1)
        return keep(
            features,
            (frames[:, None] * tokens_per_frame + torch.arange(tokens_per_frame)).flatten(),
        )
