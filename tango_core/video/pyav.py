"""Frame readers with PyAV: frames located by time, or counted in file order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from tango_core.video.headers import is_mirrored
from tango_core.video.index import RESTART_S, UNTIMED_CONTAINERS, PacketIndex
from tango_core.video.reader import (
    FrameReader,
    Indices,
    Picture,
    ReaderError,
    Times,
    opened,
    raise_if_memory,
    read_packets,
)

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def version() -> str:
    """Name and version, e.g. `"pyav 18.1.0"`."""
    import av

    return f"pyav {av.__version__}"


def decode_packet(
    stream: VideoStream, packet: Packet[VideoStream] | None, problems: list[str]
) -> list[VideoFrame]:
    """Decode one packet (`None` flushes the decoder); a damaged packet adds a problem."""
    import av

    try:
        return stream.codec_context.decode(packet)
    except av.EOFError:
        return []
    except av.FFmpegError as error:
        raise_if_memory(error)
        problems.append(f"a packet could not be decoded ({error.strerror})")
        return []


def refuse_concealment(stream: VideoStream) -> None:
    """Make the decoder fail instead of concealing errors; call before the first packet.

    H.264 marks concealed pictures as corrupt, most other codecs only report them in FFmpeg's log.
    Damage that leaves a valid stream cannot be detected: VP8, VP9 and HEVC have little redundancy,
    so a changed byte often just gives another picture.
    """
    stream.codec_context.options = {"err_detect": "explode"}


def goes_back(stamps: list[int | None], stamp: int | None) -> bool:
    """Whether a frame's display time is before that of the previously decoded frame."""
    last = stamps[-1] if stamps else None
    return last is not None and stamp is not None and stamp < last


class _PyavReader(FrameReader):
    """Common part of both readers."""

    def __init__(self, path: str, index: PacketIndex):
        super().__init__(path, version())
        self._index = index
        self._mirrored = is_mirrored(path)
        from av.video.reformatter import VideoReformatter

        self._rgb = VideoReformatter().reformat  # one converter for all frames

    def _to_rgb(self, frame: VideoFrame) -> Picture:
        """Convert a frame to (h, w, 3) uint8 RGB, turned and mirrored as its file says.

        PyAV reports the rotation in `rotation`, but mirroring only in `side_data`, whose use keeps
        every frame and its threads alive.
        """
        import av

        try:
            picture = cast(Picture, self._rgb(frame, format="rgb24", threads=1).to_ndarray())
        except (av.FFmpegError, ValueError) as error:
            raise_if_memory(error)
            raise ReaderError(
                f"{self.path}: a {frame.width}x{frame.height} {frame.format.name} frame has no RGB "
                f"form ({error})"
            ) from error
        if self._mirrored:
            # Mirroring negates the matrix column that defines the angle, hence the extra 180
            # degrees.
            return np.rot90(picture[:, ::-1], round((frame.rotation + 180) / 90) % 4)
        turns = round(frame.rotation / 90) % 4
        return np.rot90(picture, turns) if turns else picture


class IndexedReader(_PyavReader):
    """Finds frames by the times of their packets, starting at the keyframe before each.

    A frame displayed at or after a keyframe never depends on anything before that keyframe, in
    closed and in open groups of pictures. Every frame is identified by its own time stamp, so a
    file that breaks this rule is detected and never gives a wrong frame.
    """

    def __init__(self, path: str, index: PacketIndex):
        super().__init__(path, index)
        self.times = index.times
        self._stack = ExitStack()
        self._reopen()
        self._is_primed = False

    def _reopen(self) -> None:
        """Open the file at its start."""
        self._stack.close()
        self._container, self._stream = self._stack.enter_context(opened(self.path))
        refuse_concealment(self._stream)

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        rows = np.full(len(indices), -1)  # row of the keyframe to start from; -1: start of the file
        if self._index.seekable:
            ticks = self._index.shown[indices]
            rows = np.searchsorted(self._index.keyframes[:, 0], ticks, side="right") - 1
        for row in np.unique(rows):
            yield from self._decode_run(int(row), indices[rows == row])

    def _decode_run(self, row: int, wanted: Indices) -> Iterator[tuple[int, Picture]]:
        """Decode from one keyframe until all wanted frames are decoded."""
        missing = {int(self._index.shown[index]): int(index) for index in wanted}
        last = max(missing)
        # Pictures displayed before the keyframe may lack references; they are not wanted.
        start = int(self._index.keyframes[row, 0]) if row >= 0 else min(missing)
        stamps: list[int | None] = []
        for frame in self._frames_from(row, missing):
            if goes_back(stamps, frame.pts):
                raise ReaderError(f"{self.path}: frames came out in a wrong order")
            stamps.append(frame.pts)
            if frame.is_corrupt and frame.pts is not None and frame.pts >= start:
                raise ReaderError(f"{self.path}: a picture is damaged after seeking")
            if frame.pts in missing:
                yield missing.pop(frame.pts), self._to_rgb(frame)
            if not missing:
                return
            if frame.pts is not None and frame.pts > last:
                break
        first = min(missing.values())
        raise ReaderError(
            f"{self.path}: frame {first} of {len(self.times)} did not come out of the decoder"
        )

    def _frames_from(self, row: int, wanted: Container[int | None]) -> Iterator[VideoFrame]:
        """Decode from a keyframe in display order; raises for a damaged packet.

        Of H.264, frames on which no other depends and that are not wanted are left out.
        """
        may_skip = self._stream.codec_context.name == "h264"
        start = int(self._index.keyframes[row, 2]) if row >= 0 else 0
        first = int(self._index.keyframes[row, 0]) if row >= 0 else int(self._index.shown[0])
        self._go_to(row)
        started = False
        for packet in read_packets(self._container, self._stream, self.problems):
            at = self._index.place(packet.pts)
            if not started and at > start:
                raise ReaderError(f"{self.path}: seeking skipped frames")
            started = started or at == start
            if started:
                # Displayed before the keyframe: may lack references, and is not wanted.
                leads = packet.pts is not None and packet.pts < first
                problems: list[str] = []
                if may_skip:
                    is_wanted = packet.pts in wanted
                    self._stream.codec_context.skip_frame = "DEFAULT" if is_wanted else "NONREF"
                yield from decode_packet(self._stream, packet, problems)
                if not leads:
                    self.problems += problems
                    if packet.is_corrupt or problems:
                        return
        yield from decode_packet(self._stream, None, self.problems)

    def _go_to(self, row: int) -> None:
        """Seek to a keyframe or to a position before it.

        The decoder sees the first packet of the file before the first seek. Encoders write their
        version there and nowhere else (x264, Xvid, DivX), and the decoder works around faults of
        old versions, also after a seek: without it, H.264 4:4:4 by an old x264 decodes to green
        pictures.
        """
        import av

        if row >= 0:
            try:
                if not self._is_primed:
                    packet = next(read_packets(self._container, self._stream, []), None)
                    if packet is not None:
                        decode_packet(self._stream, packet, [])
                    self._is_primed = True
                self._container.seek(int(self._index.keyframes[row, 1]), stream=self._stream)
                return
            except (av.FFmpegError, OSError) as error:
                raise_if_memory(error)
        self._reopen()


class _Pass(NamedTuple):
    """Result of one decoding pass over a file.

    Attributes:
        stamps: Presentation tick of every frame, as reported by the decoder.
        keyframes: Positions in `stamps` of frames where decoding may start.
        faults: (position in `stamps`, description) of faults, except after the last good packet,
            where a truncated file ends.
        bad_packets: Problem by index of the packet.
        delay: Number of packets that the decoder reads before the one that outputs the first frame.
    """

    stamps: list[int | None]
    keyframes: list[int]
    faults: list[tuple[int, str]]
    bad_packets: dict[int, str]
    delay: int


class SequentialReader(_PyavReader):
    """Counts frames by decoding the whole file, then decodes it again up to the last wanted frame.

    For formats without time stamps, and for damaged files. Decoders conceal many errors, so the
    first pass treats concealment as an error; only after an error a second pass counts the frames
    that will be output, concealed ones included.
    """

    def __init__(self, path: str, index: PacketIndex):
        super().__init__(path, index)
        found = self._decode_all([])
        if found.faults or found.bad_packets:
            found = self._decode_all(self.problems, found.bad_packets)
        self._keyframes = found.keyframes
        self._faults = [*found.faults, *_unkept_promises(found.stamps, index)]
        self.times = times_of_decoded(found.stamps, found.delay, index)

    def _decode_all(self, problems: list[str], known: Mapping[int, str] | None = None) -> _Pass:
        """Decode everything once.

        Args:
            problems: Receives descriptions of problems.
            known: Packets known to be bad although the decoder may not report them; without them, a
                picture with concealed errors is an error.
        """
        found = _Pass([], [0], [], {}, 0)
        delay = 0
        num_inside: int | None = None
        with opened(self.path) as (container, stream):
            if known is None:
                refuse_concealment(stream)
            packets = chain(read_packets(container, stream, problems), [None])
            for at, packet in enumerate(packets):
                noted, shown = len(problems), len(found.stamps)
                for frame in decode_packet(stream, packet, problems):
                    position = len(found.stamps)
                    if frame.is_corrupt:
                        found.faults.append((position, f"frame {position} is damaged"))
                    if self._index.stores_times and goes_back(found.stamps, frame.pts):
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
        if num_inside is not None:  # if no packet was good, the file is not merely truncated
            del found.faults[num_inside:]
        return found._replace(delay=delay)

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        missing = {int(index) for index in indices}
        first, last = min(missing), max(missing)
        start = max(at for at in self._keyframes if at <= first)
        self.damage = [text for at, text in self._faults if start <= at <= last]
        with opened(self.path) as (container, stream):
            packets = chain(read_packets(container, stream, []), [None])
            frames = (frame for packet in packets for frame in decode_packet(stream, packet, []))
            for at, frame in enumerate(frames):
                if at in missing:
                    if frame.is_corrupt:
                        self.problems.append(f"frame {at} is damaged")
                    missing.remove(at)
                    yield at, self._to_rgb(frame)
                if not missing:
                    return


def _unkept_promises(stamps: list[int | None], index: PacketIndex) -> list[tuple[int, str]]:
    """Frames in the file's index that were not decoded, except at the end."""
    known = np.array([stamp for stamp in stamps if stamp is not None], dtype=np.int64)
    # A mov has a frame with a known time for every packet that is not hidden.
    promises = index.trusted and index.container.startswith("mov")
    if not promises or len(known) < len(stamps) or not len(known):
        return []
    lost = np.setdiff1d(index.shown[index.shown < known.max()], known)
    places = np.searchsorted(np.sort(known), lost)
    return [(int(at), "a frame of the file's index did not come out") for at in places]


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
        stamps: Presentation tick of every frame, as reported by the decoder.
        delay: Number of packets that the decoder reads before the one that outputs the first frame.
        index: Header and packet data of the file.

    Returns:
        (n,) seconds, not descending.
    """
    if not stamps:
        return np.zeros(0)
    known = [stamp for stamp in stamps if stamp is not None]
    all_known = len(known) == len(stamps)
    if index.container.split(",")[0] not in UNTIMED_CONTAINERS and all_known:
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
    return np.arange(len(stamps)) / (index.rate or DEFAULT_RATE)


def _without_restarts(ticks: Indices, index: PacketIndex) -> Indices:
    """Make restarting time stamps continue, one usual step after the previous frame."""
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
