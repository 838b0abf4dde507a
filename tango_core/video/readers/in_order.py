"""Frames by PyAV in the order of the file, for files whose packets do not tell what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tango_core.video.readers.base import Indices, Picture
from tango_core.video.readers.container import opened
from tango_core.video.readers.orientation import is_mirrored
from tango_core.video.readers.probe import PacketIndex
from tango_core.video.readers.pyav import (
    decode_packet,
    goes_back,
    read_packets,
    refuse_concealment,
    to_rgb,
    version,
)
from tango_core.video.readers.stamps import times_of_decoded

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

# A file of these promises a frame for every packet that is not hidden, with the time of it.
_PROMISING_CONTAINERS = ("mov",)


class _Pass(NamedTuple):
    """What one pass over a file found.

    Attributes:
        stamps: Presentation tick of every frame, as the decoder gives it.
        keyframes: Positions in `stamps` of frames where decoding may start.
        faults: (position in `stamps` before which it lies, what it is), but not those behind the
            last good packet: that is the end of a file that was cut off.
        bad_packets: Number of a packet -> what is wrong with it.
        delay: Packets that the decoder took in before the one that let the first frame out.
    """

    stamps: list[int | None]
    keyframes: list[int]
    faults: list[tuple[int, str]]
    bad_packets: dict[int, str]
    delay: int


class SequentialReader:
    """Counts frames by decoding the whole file, then decodes it again up to the last wanted frame.

    For formats without time stamps, and for damaged files. A decoder hides much of what it cannot
    decode, so the first pass refuses that; only if something was wrong a second one counts the
    frames as they will be shown, inventions included.
    """

    def __init__(self, path: str, index: PacketIndex):
        self.name = version()
        self.damage: list[str] = []
        self.problems: list[str] = []
        self._path = path
        self._mirrored = is_mirrored(path)
        found = self._decode_all(index, [], strict=True)
        if found.faults or found.bad_packets:
            found = self._decode_all(index, self.problems, known=found.bad_packets)
        self._keyframes = found.keyframes
        self._faults = [*found.faults, *_unkept_promises(found.stamps, index)]
        self.times = times_of_decoded(found.stamps, found.delay, index)

    def _decode_all(
        self,
        index: PacketIndex,
        problems: list[str],
        *,
        strict: bool = False,
        known: Mapping[int, str] | None = None,
    ) -> _Pass:
        """Decode everything once.

        Args:
            index: What header and packets say.
            problems: Receives what went wrong.
            strict: Whether a picture that the decoder had to invent is an error.
            known: Packets known to be bad although the decoder may not say so.
        """
        found = _Pass([], [0], [], {}, 0)
        delay = 0
        num_inside: int | None = None
        with opened(self._path) as (container, stream):
            if strict:
                refuse_concealment(stream)
            packets = chain(read_packets(container, stream, problems), [None])
            for at, packet in enumerate(packets):
                noted, shown = len(problems), len(found.stamps)
                for frame in decode_packet(stream, packet, problems):
                    position = len(found.stamps)
                    if frame.is_corrupt:
                        found.faults.append((position, f"frame {position} is damaged"))
                    if index.stores_times and goes_back(found.stamps, frame.pts):
                        found.faults.append((position, "frames came out in a wrong order"))
                    if frame.key_frame:
                        found.keyframes.append(position)
                    found.stamps.append(frame.pts)
                if len(problems) > noted:
                    found.bad_packets[at] = problems[-1]
                    found.faults.append((len(found.stamps), problems[-1]))
                elif known and at in known:
                    found.faults.append((shown, known[at]))
                elif packet is not None and packet.is_corrupt:
                    found.faults.append((len(found.stamps), "a packet is incomplete"))
                elif packet is not None:
                    num_inside = len(found.faults)
                delay += not found.stamps and packet is not None
        if num_inside is not None:  # else not one packet was good: that is no end of a file
            del found.faults[num_inside:]
        return found._replace(delay=delay)

    def close(self) -> None:
        """Nothing stays open between passes."""

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        missing = {int(index) for index in indices}
        first, last = min(missing), max(missing)
        start = max(at for at in self._keyframes if at <= first)
        self.damage = [text for at, text in self._faults if start <= at <= last]
        for at, frame in enumerate(self._frames([])):
            if at in missing:
                if frame.is_corrupt:
                    self.problems.append(f"frame {at} is damaged")
                missing.remove(at)
                yield at, to_rgb(self._path, frame, mirrored=self._mirrored)
            if not missing:
                return

    def _frames(self, problems: list[str]) -> Iterator[VideoFrame]:
        """Decode everything, in display order."""
        with opened(self._path) as (container, stream):
            for packet in chain(read_packets(container, stream, problems), [None]):
                yield from decode_packet(stream, packet, problems)


def _unkept_promises(stamps: list[int | None], index: PacketIndex) -> list[tuple[int, str]]:
    """Frames that the index of the file has, inside, and that did not come out."""
    known = np.array([stamp for stamp in stamps if stamp is not None], dtype=np.int64)
    promising = index.trusted and index.info.container.startswith(_PROMISING_CONTAINERS)
    if not promising or len(known) < len(stamps) or not len(known):
        return []
    lost = np.setdiff1d(index.shown[index.shown < known.max()], known)
    places = np.searchsorted(np.sort(known), lost)
    return [(int(at), "a frame of the file's index did not come out") for at in places]
