"""Stretches of a file whose packets are lost because the file is overwritten there."""

from __future__ import annotations

import numpy as np

from tango_core.video.readers.base import Indices
from tango_core.video.readers.container import opened
from tango_core.video.readers.errors import VideoDecodeError

# FFmpeg searches the next readable packet in these without telling the caller about it.
RESYNCING_CONTAINERS = ("matroska",)
_CUT_OFF = "File ended prematurely"


def suspicious_gaps(shown: Indices, end: int, announced_end: int | None) -> list[tuple[int, int]]:
    """Find where more than one frame may be missing; a variable frame rate looks the same.

    Args:
        shown: (n,) ticks at which frames are shown, ascending.
        end: Tick at which the last frame ends.
        announced_end: Tick at which the file ends by its header; `None` if it does not say.

    Returns:
        (last tick before, first tick after) of each gap.
    """
    steps = np.diff(shown)
    if not len(steps):
        return []
    longest = 2.5 * float(np.median(steps))
    gaps = [(int(shown[at]), int(shown[at + 1])) for at in np.flatnonzero(steps > longest)]
    if announced_end is not None and announced_end - end > longest:
        gaps.append((int(shown[-1]), announced_end))
    return gaps


def reports_damage(path: str) -> bool:
    """Read all packets once more, and tell whether FFmpeg reported bytes that it had to skip.

    It reports this to its log alone. That a file ends early is not counted.
    """
    import av

    level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    # A message equal to that of the file before is a message all the same.
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as messages, opened(path) as (container, stream):
            name = container.format.name
            try:
                for _ in container.demux(stream):
                    pass
            except (av.FFmpegError, OSError):
                return True
    except VideoDecodeError:
        return True
    finally:
        av.logging.set_skip_repeated(skips)
        av.logging.set_level(level)
    return any(source == name and _CUT_OFF not in text for _, source, text in messages)
