"""Stretches of a file whose packets are lost because the file is overwritten there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tango_core.video.readers.base import Indices
from tango_core.video.readers.container import demuxed, opened
from tango_core.video.readers.errors import VideoDecodeError

# FFmpeg searches the next readable packet in these without telling the caller about it.
RESYNCING_CONTAINERS = ("matroska",)
_CUT_OFF = "File ended prematurely"


class ReadPacket(NamedTuple):
    """Where a packet was found in a file, or where its index has it.

    Attributes:
        position: First byte of its content.
        size: Its bytes.
        number: Of the frame, in ticks.
    """

    position: int
    size: int
    number: int


def lost_of_avi(
    path: str, promised: Sequence[ReadPacket], read: Sequence[ReadPacket], announced: int
) -> list[tuple[int, int]]:
    """Compare the packets of an AVI with its index.

    Where packets are lost, those behind have wrong numbers, because FFmpeg counts on. Where the
    index is damaged, too, only the header's number of frames is left to compare with. A file that
    was cut off has lost nothing inside.

    Args:
        path: The file.
        promised: Entries of its index.
        read: Packets, in the order of the file.
        announced: Frames by the header, dropped ones included; 0 if it does not say.

    Returns:
        (last number before, number of the end) of the stretch that cannot be trusted, if any.
    """
    if not read or _is_cut_off(path):
        return []
    there = {(packet.position, packet.size) for packet in read}
    end = max(announced, *(packet.number + 1 for packet in [*read, *promised]))
    lost = [e for e in promised if e.size and (e.position, e.size) not in there]
    numbers = [entry.number for entry in lost if not _is_palette(path, entry.position)]
    if numbers:
        kept = [e.number for e in promised if (e.position, e.size) in there]
        return [(max((n for n in kept if n < min(numbers)), default=0), end)]
    is_indexed = there <= {(entry.position, entry.size) for entry in promised}
    if is_indexed or max(packet.number for packet in read) + 1 == end:
        return []
    return [(0, end)]


def _is_palette(path: str, position: int) -> bool:
    """Whether an entry of an index is a change of colours, which is no packet."""
    with open(path, "rb") as file:
        file.seek(max(0, position - 8))
        return file.read(4)[2:] == b"pc"


def _is_cut_off(path: str) -> bool:
    """Whether a RIFF file is shorter than it says, or was never finished."""
    with open(path, "rb") as file:
        head = file.read(8)
    size = int.from_bytes(head[4:8], "little")
    return size == 0 or os.path.getsize(path) < size + 8


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
                for _ in demuxed(container, stream):
                    pass
            except (av.FFmpegError, OSError):
                return True
    except VideoDecodeError:
        return True
    finally:
        av.logging.set_skip_repeated(skips)
        av.logging.set_level(level)
    return any(source == name and _CUT_OFF not in text for _, source, text in messages)
