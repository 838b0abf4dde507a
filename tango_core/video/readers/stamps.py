"""When the frames of a file are shown that came out of sequential decoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tango_core.video.readers.base import Indices, Times
from tango_core.video.readers.probe import RESTART_S, UNTIMED_CONTAINERS, PacketIndex

DEFAULT_RATE = 25.0


def times_of_decoded(stamps: Sequence[int | None], delay: int, index: PacketIndex) -> Times:
    """Seconds from the start of the file of every decoded frame, in display order.

    Most containers store a presentation time per frame, which the decoder hands on. AVI and IVF
    number their packets instead, and the number of a dropped frame has no packet:

    * As many frames as packets: a frame is shown when the packet arrives that lets it out of the
      decoder, which with B-frames comes `delay` packets later. What FFmpeg reports for such a
      codec is a guess that goes wrong around a gap, so it is not used.
    * Fewer frames (packets that are never shown), no B-frames: a frame has its packet's number.
    * Otherwise nothing tells which packet a frame belongs to; the frames take the first numbers.

    Without gaps the time is index / rate, as it is for formats without any number.

    Args:
        stamps: Presentation tick of every frame, as the decoder gives it.
        delay: Packets that the decoder took in before the one that let the first frame out.
        index: What header and packets say.

    Returns:
        (n,) seconds, not descending.
    """
    if not stamps:
        return np.zeros(0)
    known = [stamp for stamp in stamps if stamp is not None]
    all_known = len(known) == len(stamps)
    if index.info.container.split(",")[0] not in UNTIMED_CONTAINERS and all_known:
        ticks = np.array(known, dtype=np.int64)
        return np.maximum.accumulate(index.seconds(_without_restarts(ticks, index)))
    numbers = index.numbers
    if len(stamps) < len(numbers):
        own = np.array(known, dtype=np.int64)
        ascending = all_known and bool((np.diff(own) > 0).all())
        if ascending and not index.reordered:
            return index.seconds(own)
    if index.has_gaps and len(stamps) <= len(numbers):
        return index.seconds(_delayed(numbers, delay)[: len(stamps)])
    return np.arange(len(stamps)) / (index.info.rate or DEFAULT_RATE)


def _without_restarts(ticks: Indices, index: PacketIndex) -> Indices:
    """Let time stamps that start again go on, one usual step behind the frame before."""
    steps = np.diff(ticks)
    falls = steps * float(index.time_base) < -RESTART_S
    if not falls.any():
        return ticks
    usual = int(np.median(steps[steps > 0])) if (steps > 0).any() else 0
    moved: Indices = ticks[0] + np.concatenate([[0], np.cumsum(np.where(falls, usual, steps))])
    return moved


def _delayed(numbers: Indices, delay: int) -> Indices:
    """Number of the packet `delay` later, counted from the start of the file again."""
    step = int(np.median(np.diff(numbers)))
    after = numbers[-1] + step * np.arange(1, delay + 1)
    late: Indices = np.concatenate([numbers, after])
    return late[delay:] - min(int(late[delay] - late[0]), delay * step)
