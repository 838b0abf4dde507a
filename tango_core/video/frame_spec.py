"""How the frames of a clip are chosen, decoded and resized."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tango_core.errors import InputError
from tango_core.video.sampling import SAMPLINGS, Sampling, fit_size, size_of_area

DecoderName = Literal["auto", "decord", "pyav", "torchcodec", "torchcodec_cuda"]
FrameTimes = Literal["own", "average_rate"]
DECODERS = ("auto", "decord", "pyav", "torchcodec", "torchcodec_cuda")


@dataclass(frozen=True)
class FrameSpec:
    """How a clip is sampled and resized; part of the cache identity.

    Attributes:
        num_frames: Frames per clip, at least 1. A shorter clip repeats frames or gives fewer
            frames, depending on `sampling`.
        size: (height, width) every frame is stretched to, or `None` to keep the stream's size.
        sampling: Which frames: one of the rules of `sampling.frame_indices`.
        decoder: `"auto"` is PyAV; decord conceals damage without reporting it; torchcodec_cuda
            decodes on the GPU (NVDEC).
        max_pixels: Instead of `size`: keep the aspect, round both sides to `multiple`, and fit this
            area (Qwen).
        min_pixels: With `max_pixels`: enlarge frames with less area than this.
        multiple: With `max_pixels`: patch size times merge size, in pixels.
        folder_fps: Frames per second of a clip that is a directory of images.
        total_pixels: With `max_pixels`: area of all frames of a clip together, two frames counting
            as one; long clips get smaller frames (Qwen3-VL). `None` for no such bound.
        area: With `max_pixels`: instead of fitting between the two bounds, bring every frame to
            this area at its own shape, and round both sides to `multiple` (Video-MME-v2 in
            VLMEvalKit).
        times: Time stamps of the frames: `"own"`, those of the stream, or `"average_rate"`, number
            of the frame in the clip / average rate of the file, as processors of transformers
            compute them. They differ where the frame rate varies.
    """

    num_frames: int
    size: tuple[int, int] | None = None
    sampling: Sampling = "truncate"
    decoder: DecoderName = "auto"
    max_pixels: int | None = None
    min_pixels: int = 0
    multiple: int = 28
    folder_fps: float = 3.0
    total_pixels: int | None = None
    area: int | None = None
    times: FrameTimes = "own"

    def __post_init__(self) -> None:
        """Raise for settings that no clip can satisfy."""
        for holds, message in (
            (self.num_frames >= 1, f"num_frames must be 1 or larger, got {self.num_frames}"),
            (
                self.sampling in SAMPLINGS,
                f"unknown sampling {self.sampling!r}; choose one of: {', '.join(SAMPLINGS)}",
            ),
            (
                self.decoder in DECODERS,
                f"unknown decoder {self.decoder!r}; choose one of: {', '.join(DECODERS)}",
            ),
            (not (self.size and self.max_pixels), "size and max_pixels exclude each other"),
            (0 < self.folder_fps < math.inf, "folder_fps must be a positive number"),
        ):
            if not holds:
                raise InputError(f"{message}; got {self}")

    def largest_area(self, num_frames: int) -> float | None:
        """Largest frame area in a clip of `num_frames` frames; `None` for no bound.

        As in qwen-vl-utils 0.0.14: the total area is divided, down to 1.05 times the smallest area.
        """
        if self.max_pixels is None or self.total_pixels is None:
            return self.max_pixels
        shared = max(self.total_pixels / num_frames * 2, int(1.05 * self.min_pixels))
        return min(self.max_pixels, shared)

    def frame_size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        """Size of every frame of a clip: fixed, fitted to an area, or that of its stream.

        Args:
            height: Height of the stream in pixels.
            width: Width of the stream in pixels.
            num_frames: Number of the clip's sampled frames.

        Returns:
            (height, width).

        Raises:
            ValueError: If frames are to be fitted and one side is over 200 times the other.
        """
        if self.size is not None:
            return self.size
        if self.area is not None:
            stated = size_of_area(height, width, self.area)
            return fit_size(*stated, 0, math.inf, self.multiple)
        largest = self.largest_area(num_frames)
        if largest is None:
            return height, width
        return fit_size(height, width, self.min_pixels, largest, self.multiple)

    def identity(self) -> dict[str, Any]:
        """Fields that enter the cache fingerprint."""
        identity = asdict(self)
        for name in ("total_pixels", "area"):  # caches are older than these fields
            if identity[name] is None:
                del identity[name]
        if self.times == "own":
            del identity["times"]
        if (self.sampling, self.num_frames) == ("thinned", 1):
            identity["rule"] = 2  # release 0.1 used only the first frame
        return identity
