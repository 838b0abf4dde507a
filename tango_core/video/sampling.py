"""How the frames of a clip are chosen and resized: sampling rules, sizes, `FrameSpec`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tango_core.errors import InputError

Sampling = Literal[
    "truncate", "round", "per_second", "two_per_second", "thinned", "inner", "middles"
]
SAMPLINGS: tuple[str, ...] = get_args(Sampling)
DecoderName = Literal["auto", "decord", "pyav", "torchcodec", "torchcodec_cuda"]
DECODERS: tuple[str, ...] = get_args(DecoderName)
FrameTimes = Literal["own", "average_rate"]

# qwen-vl-utils: default frames per second, and bounds of the number of frames.
_QWEN_RATE, _QWEN_FEWEST, _QWEN_MOST = 2.0, 4, 768

# Bounds are often written with two or three decimals; a frame exactly on a bound must not depend on
# float noise.
BOUND_SLACK_S = 1e-6


def frame_indices(
    num_available: int, num_frames: int, sampling: Sampling, rate: float | None = None
) -> NDArray[np.int64]:
    """Choose frames of a clip as the published pipelines do.

    Of n frames, for k wanted:

    - `truncate`: `linspace(0, n - 1, k)` cut to integers; with n < k frames repeat. LLaVA in
      VLMEvalKit with forced sampling (in Tango's copy always, in the original for checkpoints with
      "video" in their path), LLaVA-OneVision in lmms-eval.
    - `round`: k is made even (half to even), `linspace` in float32 is rounded half to even, and
      n < k gives `n // 2 * 2` frames. qwen-vl-utils, hence Qwen2.5-VL in VLMEvalKit.
    - `per_second`: every `round(rate)`-th from the first; if those are more than k, `truncate`.
      LLaVA-Video in lmms-eval, LLaVA-OneVision in VLMEvalKit without forced sampling.
    - `two_per_second`: two per second, but 4 to k and an even number, placed as by `round`.
      qwen-vl-utils with `fps: 2` and `max_frames: k`, hence the official scripts of Qwen3-VL.
    - `thinned`: two per second, but 4 to 768 and an even number, placed as by `round`; if those are
      more than k, k of them as by `truncate`, and the last one in any case: two frames for k = 1.
      Qwen2.5-VL in lmms-eval.
    - `inner`: multiples of `n / (k + 1)`, cut to integers: neither first nor last. VLMEvalKit's
      models that take lists of images.
    - `middles`: the middles of k parts of equal length. MVBench's own rule, for such models; its
      bounds are numbers of frames, too (`numbered_window`).

    A clip of a single frame, which qwen-vl-utils refuses, gives that frame twice.

    Args:
        num_available: Frames in the clip (n), at least 1.
        num_frames: Frames wanted (k), at least 1.
        sampling: The rule.
        rate: Frames per second of the clip, larger than 0; `per_second`, `two_per_second`
            and `thinned` need it.

    Returns:
        (F,) positions in [0, n - 1], not descending. F is k; less on clips that are too short for
        `round`, `per_second`, `two_per_second` and `thinned`; 2 for k = 1 by `round` and `thinned`.

    Raises:
        ValueError: If the rule needs a rate and `rate` is `None`.
    """
    if sampling == "truncate":
        return _truncated(num_available, num_frames)
    if sampling == "round":
        wanted = max(2, round(num_frames / 2) * 2)
        return _rounded(num_available, min(wanted, num_available // 2 * 2))
    if sampling == "inner":
        places = num_available / (num_frames + 1) * np.arange(1, num_frames + 1)
        return places.astype(np.int64)
    if sampling == "middles":
        part = (num_available - 1) / num_frames
        middles: NDArray[np.float64] = part / 2 + np.rint(part * np.arange(num_frames))
        return middles.astype(np.int64)
    if rate is None:
        raise InputError(f"sampling {sampling!r} needs the frames per second of the clip")
    if sampling == "per_second":
        every = np.arange(0, num_available, max(1, round(rate)), dtype=np.int64)
        return every if len(every) <= num_frames else _truncated(num_available, num_frames)
    most = num_frames if sampling == "two_per_second" else _QWEN_MOST
    count = max(num_available / rate * _QWEN_RATE, _QWEN_FEWEST)
    count = math.floor(min(count, most, num_available) / 2) * 2
    if sampling == "two_per_second":
        return _rounded(num_available, count)
    found = _rounded(num_available, count)
    kept = [*_truncated(len(found), num_frames), len(found) - 1]
    thinned: NDArray[np.int64] = found[np.unique(kept)]
    return thinned


def _truncated(num_available: int, num_frames: int) -> NDArray[np.int64]:
    """`linspace` from first to last, cut to integers."""
    return np.linspace(0, num_available - 1, num_frames).astype(np.int64)


def _rounded(num_available: int, num_frames: int) -> NDArray[np.int64]:
    """`torch.linspace` from first to last, rounded; at least two frames.

    It is float32, up from the start and down from the end. torch fuses multiplication and addition:
    one rounding to float32, at the end. On a video of nine hours the unfused form is a frame off.
    """
    last, steps = num_available - 1, max(2, num_frames)
    step = np.float64(np.float32(last) / np.float32(steps - 1))
    count = np.arange(steps, dtype=np.float64)
    values = np.where(count < steps // 2, step * count, last - step * (steps - 1 - count))
    return np.rint(values.astype(np.float32)).astype(np.int64)


def clip_window(times: NDArray[np.float64], start: float, end: float) -> tuple[int, int]:
    """Find the frames shown in [start, end]: positions (first, one past the last), never empty.

    If no frame lies in the interval, or start equals end, the one frame nearest to its middle is
    the clip; of two equally near ones the earlier.

    Args:
        times: (n,) ascending seconds, n at least 1.
        start: Seconds, at least 0.
        end: Seconds, at least `start`; may be infinite.
    """
    first = int(np.searchsorted(times, start - BOUND_SLACK_S, side="left"))
    stop = int(np.searchsorted(times, end + BOUND_SLACK_S, side="right"))
    if start < end and first < stop:
        return first, stop
    middle = start if math.isinf(end) else (start + end) / 2
    nearest = int(np.abs(times - middle).argmin())
    return nearest, nearest + 1


def numbered_window(
    num_frames: int, start: float, end: float, rate: float, first: int
) -> tuple[int, int]:
    """Find the frames that belong to [start, end] by their numbers: MVBench's rule.

    Frame `max(first, round(start * rate))` is the first one and `round(end * rate)`, or the last
    there is, the last one; an interval between two frames gives the first of these.

    Args:
        num_frames: Number of frames of the file or folder, at least 1.
        start: Seconds, at least 0.
        end: Seconds, at least `start`; may be infinite.
        rate: Frames per second.
        first: Number of the first frame: 1 in folders of images, 0 in files.

    Returns:
        0-based positions (first, one past the last), never empty.
    """
    last = num_frames - 1 + first
    begin = min(max(first, round(start * rate)), last)
    stop = last if math.isinf(end) else min(round(end * rate), last)
    return begin - first, max(begin, stop) - first + 1


def size_of_area(height: int, width: int, area: int) -> tuple[int, int]:
    """Scale a frame to an area at its aspect ratio: `_resize_kwargs_for_video` of VLMEvalKit.

    Its Video-MME-v2 states this size to models that read files of videos.

    Args:
        height: Of the stream, in pixels.
        width: Of the stream, in pixels.
        area: Target area in pixels; larger frames are reduced, smaller ones enlarged.

    Returns:
        (height, width), multiples of 16, whose area differs from the target by rounding.
    """
    scale = math.sqrt(area / (width * height))
    return max(16, round(height * scale / 16) * 16), max(16, round(width * scale / 16) * 16)


def fit_size(
    height: int, width: int, min_pixels: int, max_pixels: float, multiple: int
) -> tuple[int, int]:
    """Fit a frame into an area, in multiples of `multiple`: qwen-vl-utils' `smart_resize`.

    Args:
        height: Of the stream, in pixels.
        width: Of the stream, in pixels.
        min_pixels: Smallest area; smaller frames are enlarged.
        max_pixels: Largest area; larger frames are reduced.
        multiple: Both sides are multiples of this.

    Returns:
        (height, width).

    Raises:
        ValueError: If one side is more than 200 times the other.
    """
    if max(height, width) > 200 * min(height, width):
        raise InputError(f"frames of {width}x{height} are too narrow, over 200 to 1")
    new_height = max(multiple, round(height / multiple) * multiple)
    new_width = max(multiple, round(width / multiple) * multiple)
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(multiple, math.floor(height / shrink / multiple) * multiple)
        new_width = max(multiple, math.floor(width / shrink / multiple) * multiple)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / multiple) * multiple
        new_width = math.ceil(width * grow / multiple) * multiple
    return new_height, new_width


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

    def frame_size(self, height: int, width: int, num_frames: int) -> tuple[int, int]:
        """Size of every frame of a clip: fixed, fitted to an area, or that of its stream.

        As in qwen-vl-utils 0.0.14, a total area is divided, down to 1.05 times the smallest area.

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
        largest: float | None = self.max_pixels
        if largest is None:
            return height, width
        if self.total_pixels is not None:
            shared = max(self.total_pixels / num_frames * 2, int(1.05 * self.min_pixels))
            largest = min(largest, shared)
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
