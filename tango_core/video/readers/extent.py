"""Where a clip lies in a file, and whether the file is as long as its header announces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tango_core.video.readers.base import Times
from tango_core.video.readers.errors import VideoDecodeError
from tango_core.video.readers.probe import PacketIndex
from tango_core.video.sampling import clip_window, numbered_window

# A header's length is rounded, and in Matroska it may be that of the sound: below this, nothing is
# missing.
LOSS_SLACK_S = 0.5
LOSS_SLACK_SHARE = 0.02


def locate_clip(
    path: str,
    times: Times,
    index: PacketIndex,
    clip: tuple[float, float],
    num_frames: int,
    by_number: bool = False,
) -> tuple[tuple[int, int], Sequence[str]]:
    """Find the frames of a clip, and compare them with what the header announces.

    Args:
        path: For messages.
        times: (n,) seconds of the frames that can be decoded.
        index: What header and packets say.
        clip: (start, end) in seconds; the end may be infinite.
        num_frames: Frames that sampling asks for.
        by_number: Bounds are numbers of frames at the average rate (`sampling.numbered_window`),
            not times, unless the rate is unknown.

    Returns:
        Positions (first, one past the last) into `times`, and warnings.

    Raises:
        VideoDecodeError: If there are no frames, the clip starts behind the last one, or the file
            was cut off and fewer frames than `num_frames` are left of a clip that had more.
    """
    if len(times) == 0:
        raise VideoDecodeError(f"{path}: 0 of {num_frames} frames decoded; {_why_nothing(index)}")
    start, end = clip
    frames_end = _end_of_frames(times, index)
    announced_end = max(index.info.duration_s or 0.0, frames_end)
    cut_off = announced_end - frames_end > max(LOSS_SLACK_S, LOSS_SLACK_SHARE * announced_end)
    if start > announced_end:
        raise VideoDecodeError(
            f"{path}: the clip starts at {start:g} s but the video ends at {announced_end:.2f} s; "
            "check the clip's bounds"
        )
    rate = index.info.rate
    if by_number and rate:
        window = numbered_window(len(times), start, end, rate, first=0)
    else:
        window = clip_window(times, start, end)
    if not cut_off:
        return window, ()
    extent = f"frames end at {frames_end:.2f} s of {announced_end:.2f} s announced"
    if start > frames_end:
        raise VideoDecodeError(
            f"{path}: the clip starts at {start:g} s but {extent}; the file is probably truncated"
        )
    num_left = window[1] - window[0]
    num_lost = round((min(end, announced_end) - frames_end) * (rate or 25.0))
    if num_lost <= 0:
        return window, ()
    if num_left < min(num_frames, num_left + num_lost):
        raise VideoDecodeError(
            f"{path}: {num_left} of {num_frames} frames decoded; the file is probably truncated"
        )
    return window, (extent,)


def _end_of_frames(times: Times, index: PacketIndex) -> float:
    """Time at which the last frame stops being shown, in seconds; a final still may last long."""
    if index.trusted and times[-1] >= index.times[-1]:
        return max(index.end_s, float(times[-1]))
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    return float(times[-1]) + (step or 1.0 / (index.info.rate or 25.0))


def _why_nothing(index: PacketIndex) -> str:
    """The likely reason why no frame came out of the decoder."""
    if index.info.container.startswith("webp"):
        return "FFmpeg does not decode animated WebP; convert it, for example to mp4"
    return "the file is probably truncated"
