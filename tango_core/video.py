"""From a video file to the frames a model was built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tango_core.types import VideoFrames

Sampling = Literal["truncate", "round"]
DecoderName = Literal["auto", "decord", "pyav", "torchcodec"]


@dataclass(frozen=True)
class FrameSpec:
    """How a clip is sampled and resized; part of the cache identity.

    Attributes:
        num_frames: Frames per clip; repeated when the clip has fewer.
        size: (height, width) every frame is stretched to, or `None` to keep the stream's size.
        sampling: How a fractional index of `linspace(0, n - 1, num_frames)` becomes a frame: `"truncate"` (LLaVA) or
            `"round"` (Qwen).
        decoder: `"auto"` uses decord where it is known to be exact and PyAV everywhere else.
    """

    num_frames: int
    size: tuple[int, int] | None = None
    sampling: Sampling = "truncate"
    decoder: DecoderName = "auto"


def decode_frames(path: str, spec: FrameSpec, clip: tuple[float, float] | None = None) -> VideoFrames:
    """Decode the frames that `spec` asks for."""
    raise NotImplementedError
