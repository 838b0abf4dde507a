"""Which frames of a clip are looked at, and how large they become."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Sampling = Literal["truncate", "round"]

# Bounds are often written with two or three decimals; a frame exactly on a bound must not depend on
# float noise.
BOUND_SLACK_S = 1e-6


def frame_indices(num_available: int, num_frames: int, sampling: Sampling) -> NDArray[np.int64]:
    """Choose frames uniformly from first to last, as the published pipelines do.

    `"truncate"` is LLaVA-OneVision and LLaVA-Video with forced sampling: `linspace(0, n - 1, k)`
    cut to integers; with n < k frames repeat. `"round"` is qwen-vl-utils: k becomes even (half to
    even), `linspace` in float32 is rounded half to even, and a clip with n < k gives `n // 2 * 2`
    frames. A clip of a single frame, which qwen-vl-utils refuses, gives that frame twice.

    Args:
        num_available: Frames in the clip (n), at least 1.
        num_frames: Frames wanted (k), at least 1.
        sampling: The rule.

    Returns:
        (F,) positions in [0, n - 1], not descending.
    """
    if sampling == "truncate":
        return np.linspace(0, num_available - 1, num_frames).astype(np.int64)
    wanted = max(2, round(num_frames / 2) * 2)
    if num_available < wanted:
        wanted = max(2, num_available // 2 * 2)
    return np.rint(_linspace_float32(num_available - 1, wanted)).astype(np.int64)


def _linspace_float32(last: int, steps: int) -> NDArray[np.float32]:
    """Give `torch.linspace(0, last, steps)`: float32, up from the start and down from the end."""
    # torch fuses multiplication and addition: one rounding to float32, at the end. On a video of
    # nine hours the unfused form is a frame off.
    step = np.float64(np.float32(last) / np.float32(steps - 1))
    count = np.arange(steps, dtype=np.float64)
    values = np.where(count < steps // 2, step * count, last - step * (steps - 1 - count))
    return values.astype(np.float32)


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


def folder_window(num_images: int, start: float, end: float, fps: float) -> tuple[int, int]:
    """Find the images of a frame folder that belong to [start, end], by MVBench's rule.

    Images count from 1; image `max(1, round(start * fps))` is the first and `min(round(end * fps),
    n)` the last one, and an interval between two images gives the first of these.

    Returns:
        0-based positions (first, one past the last), never empty.
    """
    first = min(max(1, round(start * fps)), num_images)
    last = num_images if math.isinf(end) else min(round(end * fps), num_images)
    return first - 1, max(first, last)


def fit_size(
    height: int, width: int, min_pixels: int, max_pixels: int, multiple: int
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
        raise ValueError(
            f"frames of {width}x{height} are too narrow: one side is over 200 times the other"
        )
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
