"""Frames by PyAV, found by their times: every codec of FFmpeg, exact to the frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import numpy as np

from tango_core.video.readers.base import Indices, Picture
from tango_core.video.readers.container import demuxed, opened
from tango_core.video.readers.errors import ReaderError
from tango_core.video.readers.orientation import is_mirrored, upright
from tango_core.video.readers.probe import PacketIndex

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def version() -> str:
    """Name and version, e.g. `"pyav 18.1.0"`."""
    import av

    return f"pyav {av.__version__}"


def to_rgb(path: str, frame: VideoFrame, *, mirrored: bool) -> Picture:
    """Convert a frame to (h, w, 3) uint8 RGB, turned upright as its display matrix says.

    Args:
        path: For messages.
        frame: Decoded.
        mirrored: Whether the file's header says to mirror it; see `is_mirrored`.
    """
    import av

    try:
        picture = cast(Picture, frame.to_ndarray(format="rgb24"))
    except MemoryError:
        raise
    except av.BlockingIOError as error:
        raise MemoryError("no memory for another thread") from error
    except (av.FFmpegError, ValueError) as error:
        raise ReaderError(
            f"{path}: a {frame.width}x{frame.height} {frame.format.name} frame has no RGB form "
            f"({error})"
        ) from error
    return upright(picture, frame.rotation, mirrored=mirrored)


def decode_packet(
    stream: VideoStream, packet: Packet[VideoStream] | None, problems: list[str]
) -> list[VideoFrame]:
    """Decode one packet (`None` empties the decoder); a damaged one is noted, without a frame."""
    import av

    try:
        return stream.codec_context.decode(packet)
    except MemoryError:
        raise
    except av.BlockingIOError as error:
        raise MemoryError("no memory for another thread") from error
    except av.EOFError:
        return []
    except av.FFmpegError as error:
        problems.append(f"a packet could not be decoded ({error.strerror})")
        return []


def read_packets(
    container: InputContainer, stream: VideoStream, problems: list[str]
) -> Iterator[Packet[VideoStream]]:
    """Yield packets from where the container stands; a read error ends them and is noted."""
    import av

    try:
        for packet in demuxed(container, stream):
            if packet.size:
                yield packet
    except MemoryError:
        raise
    except (av.FFmpegError, OSError) as error:
        problems.append(f"reading stopped early ({error.strerror})")


def refuse_concealment(stream: VideoStream) -> None:
    """Make the decoder fail where it would invent a part of a picture; before the first packet.

    H.264 marks invented pictures as corrupt, most other codecs say so in FFmpeg's log alone. What a
    damaged stream still obeys its codec in, no decoder can see: VP8, VP9 and HEVC have little
    redundancy, so a changed byte there often is just another picture.
    """
    stream.codec_context.options = {"err_detect": "explode"}


def goes_back(stamps: list[int | None], stamp: int | None) -> bool:
    """Whether a frame claims to be shown before the one that came out last."""
    last = stamps[-1] if stamps else None
    return last is not None and stamp is not None and stamp < last


class IndexedReader:
    """Finds frames by the times of their packets, starting at the keyframe before each.

    A frame shown at or after a keyframe never needs anything before that keyframe, in closed and in
    open groups of pictures alike: frames that do are shown before it. Every frame is recognised by
    its own time stamp, so a file that breaks this rule is noticed and never gives a wrong frame.
    """

    def __init__(self, path: str, index: PacketIndex):
        self.name = version()
        self.times = index.times
        self.damage: list[str] = []
        self.problems: list[str] = []
        self._path = path
        self._mirrored = is_mirrored(path)
        self._index = index
        self._stack = ExitStack()
        self._reopen()
        self._is_primed = False

    def _reopen(self) -> None:
        """Open the file at its start."""
        self._stack.close()
        self._container, self._stream = self._stack.enter_context(opened(self._path))
        refuse_concealment(self._stream)

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def fetch(self, indices: Indices) -> Iterator[tuple[int, Picture]]:
        """Yield the frames at `indices`; see `FrameReader`."""
        for row, group in self._runs(indices):
            yield from self._decode_run(row, group)

    def _runs(self, indices: Indices) -> Iterator[tuple[int, Indices]]:
        """Group wanted frames by the row of the keyframe to start from (-1: start of file)."""
        if not self._index.seekable:
            yield -1, indices
            return
        ticks = self._index.shown[indices]
        rows = np.searchsorted(self._index.keyframes[:, 0], ticks, side="right") - 1
        for row in np.unique(rows):
            yield int(row), indices[rows == row]

    def _decode_run(self, row: int, wanted: Indices) -> Iterator[tuple[int, Picture]]:
        """Decode from one keyframe until all wanted frames have come out."""
        missing = {int(self._index.shown[index]): int(index) for index in wanted}
        last = max(missing)
        # Pictures before the keyframe may lack what they refer to; they are not wanted.
        start = int(self._index.keyframes[row, 0]) if row >= 0 else min(missing)
        stamps: list[int | None] = []
        for frame in self._frames_from(row):
            if goes_back(stamps, frame.pts):
                raise ReaderError(f"{self._path}: frames came out in a wrong order")
            stamps.append(frame.pts)
            if frame.is_corrupt and frame.pts is not None and frame.pts >= start:
                raise ReaderError(f"{self._path}: a picture is damaged after seeking")
            if frame.pts in missing:
                yield missing.pop(frame.pts), to_rgb(self._path, frame, mirrored=self._mirrored)
            if not missing:
                return
            if frame.pts is not None and frame.pts > last:
                break
        first = min(missing.values())
        raise ReaderError(
            f"{self._path}: frame {first} of {len(self.times)} did not come out of the decoder"
        )

    def _frames_from(self, row: int) -> Iterator[VideoFrame]:
        """Decode from a keyframe on, in display order, as far as no packet is damaged."""
        start = int(self._index.keyframes[row, 2]) if row >= 0 else 0
        first = int(self._index.keyframes[row, 0]) if row >= 0 else int(self._index.shown[0])
        self._go_to(row)
        started = False
        for packet in read_packets(self._container, self._stream, self.problems):
            at = -1 if packet.pts is None else self._index.positions.get(packet.pts, -1)
            if not started and at > start:
                raise ReaderError(f"{self._path}: seeking skipped frames")
            started = started or at == start
            if started:
                # Shown before the keyframe: it may lack what it refers to, and is not wanted.
                leads = packet.pts is not None and packet.pts < first
                problems: list[str] = []
                yield from decode_packet(self._stream, packet, problems)
                if not leads:
                    self.problems += problems
                    if packet.is_corrupt or problems:
                        return
        yield from decode_packet(self._stream, None, self.problems)

    def _go_to(self, row: int) -> None:
        """Place the container at or before a keyframe."""
        import av

        if row >= 0:
            try:
                self._decode_first_packet()
                self._container.seek(int(self._index.keyframes[row, 1]), stream=self._stream)
                return
            except MemoryError:
                raise
            except (av.FFmpegError, OSError):
                pass
        self._reopen()

    def _decode_first_packet(self) -> None:
        """Show the decoder the first packet of the file, once.

        Encoders write their version there and nowhere else (x264, Xvid, DivX), and the decoder
        works around faults of old versions: without it, H.264 4:4:4 by an old x264 decodes to green
        pictures. What the decoder learns so outlives a seek.
        """
        if not self._is_primed:
            for packet in read_packets(self._container, self._stream, []):
                decode_packet(self._stream, packet, [])
                break
            self._is_primed = True
