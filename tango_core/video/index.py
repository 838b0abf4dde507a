"""Index a video file without decoding it: its streams and the time of each frame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tango_core.video.reader import Indices, Times, VideoDecodeError, opened, read_packets

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

# Containers that store a presentation time per frame and find any keyframe by it.
SEEKABLE_CONTAINERS = ("mov", "matroska")
# Containers without presentation times: what FFmpeg reports for these is guessed from the order of
# packets.
UNTIMED_CONTAINERS = ("avi", "h264", "hevc", "m4v", "mpegvideo", "ivf", "obu")
# Of these, raw streams, for which FFmpeg assumes 25 frames per second.
RATELESS_CONTAINERS = ("h264", "hevc", "m4v", "mpegvideo", "obu")
# Of these, the ones that number their packets; the number of a dropped frame has no packet.
NUMBERED_CONTAINERS = ("avi", "ivf")
# FFmpeg searches the next readable packet in these without telling the caller about it.
RESYNCING_CONTAINERS = ("matroska",)
# Seconds by which a time stamp must be smaller than the one before for a new recording to begin; as
# the command ffmpeg decides it for MPEG streams.
RESTART_S = 0.1
# Bytes of the name and the size of a chunk of AVI, in front of its content.
_CHUNK_HEADER = 8
# decord and PyAV give equal bytes for these; on 10-bit video they differ by up to 48 of 255.
_DECORD_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_CUT_OFF = "File ended prematurely"


def _no_ticks(*shape: int) -> Indices:
    return np.zeros(shape, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """What a file says about its video stream, and every packet of it in the order of the file.

    Attributes:
        container: FFmpeg's name of the format, e.g. `"mov,mp4,m4a,3gp,3g2,mj2"`.
        codec: Of the chosen video stream, e.g. `"h264"`.
        pixel_format: Of the chosen stream, e.g. `"yuv420p"`; "" if unknown before decoding.
        stream: Index of the chosen stream in the container.
        rate: Frames per second on average, dropped frames not counted; `None` if the file does not
            say.
        duration_s: Length that the header announces in seconds; `None` if it does not.
        decord_doubt: Why decord may return other frames than the file has, or `None` if it is exact
            where the stream is intact.
        time_base: Seconds per tick of `pts`.
        origin_s: Start of the file on the stream's clock; frame times count from here.
        trusted: Times are stored, present and unique, so that frames can be found by their time.
        shown: (n,) ticks at which frames are shown, ascending.
        positions: Position in the file of the packet with this presentation tick.
        keyframes: (m, 3) presentation tick, decoding tick, position; by presentation tick.
        end_s: Time at which the last shown frame ends, in seconds from the start of the file.
        numbers: (k,) ascending numbers, in ticks, of the packets of a format that numbers them
            (AVI, IVF); empty for other formats, and if a packet has none.
        reordered: Whether packets lie in another order than their frames are shown (B-frames).
        holes: (k, 2) last tick before and first tick after a stretch of the file whose packets are
            lost.
        problem: Why reading the packets ended early, or "".
    """

    container: str
    codec: str
    pixel_format: str
    stream: int
    rate: float | None
    duration_s: float | None
    decord_doubt: str | None
    time_base: Fraction
    origin_s: float
    trusted: bool
    shown: Indices
    positions: dict[int, int] = field(repr=False)
    keyframes: Indices = field(repr=False)
    end_s: float
    numbers: Indices = field(default_factory=lambda: _no_ticks(0), repr=False)
    reordered: bool = False
    holes: Indices = field(default_factory=lambda: _no_ticks(0, 2), repr=False)
    problem: str = ""

    @property
    def seekable(self) -> bool:
        """Whether decoding may start at any keyframe."""
        return self.trusted and self.container.startswith(SEEKABLE_CONTAINERS)

    @property
    def stores_times(self) -> bool:
        """Whether a frame that is shown before the one in front of it is a fault of the file.

        Times of a damaged index repeat, so that they are not trusted; they are what the file says.
        """
        return self.trusted or self.container.startswith(SEEKABLE_CONTAINERS)

    @property
    def has_gaps(self) -> bool:
        """Whether numbers of packets are left out: those of dropped frames."""
        return _num_left_out(self.numbers) > 0

    @property
    def times(self) -> Times:
        """(n,) seconds from the start of the file."""
        return self.seconds(self.shown)

    def seconds(self, ticks: Indices) -> Times:
        """Convert presentation ticks to seconds from the start of the file, never negative."""
        stamps = ticks * self.time_base.numerator / self.time_base.denominator
        return np.maximum(stamps - self.origin_s, 0.0).astype(np.float64)


class _Packet(NamedTuple):
    """What is kept of a packet; times in ticks of the stream."""

    pts: int | None
    dts: int | None
    duration: int
    is_keyframe: bool
    hidden: bool
    position: int
    size: int


class _Entry(NamedTuple):
    """Where the content of an AVI's packet begins, its bytes, and the number of its frame."""

    position: int
    size: int
    number: int


def read_index(path: str) -> PacketIndex:
    """Read all packets of a file's video stream, without decoding any.

    Raises:
        VideoDecodeError: If the file cannot be opened as a video.
    """
    with opened(path) as (container, stream):
        # FFmpeg adds to the index of an AVI what it reads, so it is read before the first packet.
        is_avi = container.format.name == "avi"
        promised = [
            _Entry(entry.pos + _CHUNK_HEADER, entry.size, entry.timestamp)
            for entry in (stream.index_entries if is_avi else ())
        ]
        problems: list[str] = []
        packets = [
            _Packet(
                packet.pts,
                packet.dts,
                packet.duration or 0,
                packet.is_keyframe,
                packet.is_discard or _is_hidden(packet, stream.codec_context.name),
                -1 if packet.pos is None else packet.pos,
                packet.size,
            )
            for packet in read_packets(container, stream, problems)
        ]
        index = _build_index(container, stream, packets, "".join(problems))
        if is_avi:
            read = [_Entry(p.position, p.size, p.dts or 0) for p in packets]
            holes = _lost_of_avi(path, promised, read, stream.frames)
        else:
            holes = _skipped(path, index)
    return replace(index, holes=np.array(holes, dtype=np.int64).reshape(-1, 2))


def _is_hidden(packet: Packet[VideoStream], codec: str) -> bool:
    """Whether a VP8 packet is never shown (RFC 6386, 9.1: bit 4 is `show_frame`)."""
    return codec == "vp8" and not memoryview(packet)[0] & 0x10


def _build_index(
    container: InputContainer, stream: VideoStream, packets: list[_Packet], problem: str
) -> PacketIndex:
    """Sort packets into display order and judge how far their times can be trusted."""
    name = container.format.name
    time_base = stream.time_base or Fraction(1, 1_000_000)
    positions = {p.pts: at for at, p in enumerate(packets) if p.pts is not None}
    trusted = name.split(",")[0] not in UNTIMED_CONTAINERS
    trusted = trusted and 0 < len(packets) == len(positions)
    decord_doubt = _decord_doubt(container, stream, packets, trusted)
    shown = sorted((p.pts, p.duration) for p in packets if not p.hidden and p.pts is not None)
    keyframes = sorted(
        (p.pts, p.pts if p.dts is None else p.dts, positions[p.pts])
        for p in packets
        if p.is_keyframe and p.pts is not None
    )
    numbers = np.unique([p.dts for p in packets if p.dts is not None]).astype(np.int64)
    if not name.startswith(NUMBERED_CONTAINERS) or len(numbers) < len(packets):
        numbers = _no_ticks(0)
    rate = stream.average_rate or stream.guessed_rate
    if rate and _num_left_out(numbers):
        rate = rate * len(numbers) / (len(numbers) + _num_left_out(numbers))
    origin_s = (container.start_time or 0) / 1_000_000
    if origin_s < 0:
        # MPEG time stamps before a wrap of their 33 bits are negative. In other containers a
        # negative start is mostly that of the sound, and the video begins at 0.
        origin_s = min(0.0, float(shown[0][0] * time_base)) if shown else 0.0
    last_tick = max((pts + duration for pts, duration in shown), default=0)
    if name in RATELESS_CONTAINERS:
        problem = problem or (
            f"a raw stream stores no times; its frames are taken as {float(rate or 0):g} per second"
        )
    ticks = [p.dts for p in packets if p.dts is not None]
    restarts = sum(float((a - b) * time_base) > RESTART_S for a, b in pairwise(ticks))
    if restarts:
        trusted = False
        problem = problem or (
            f"its time stamps start again {restarts} time{'s' if restarts > 1 else ''} (recordings "
            "that were joined); times go on from one part to the next"
        )
    return PacketIndex(
        container=name,
        codec=stream.codec_context.name,
        pixel_format=stream.codec_context.pix_fmt or "",
        stream=stream.index,
        rate=float(rate) if rate else None,
        duration_s=_duration(container, stream),
        decord_doubt=decord_doubt,
        time_base=time_base,
        origin_s=origin_s,
        trusted=trusted and bool(shown),
        shown=np.array([pts for pts, _ in shown], dtype=np.int64),
        positions=positions,
        keyframes=np.array(keyframes, dtype=np.int64).reshape(-1, 3),
        end_s=float(last_tick * time_base) - origin_s,
        numbers=numbers,
        reordered=any(packet.pts != packet.dts for packet in packets),
        problem=problem,
    )


def _num_left_out(numbers: Indices) -> int:
    """How many numbers have no packet, before the last one."""
    return int(numbers[-1]) + 1 - len(numbers) if len(numbers) else 0


def _duration(container: InputContainer, stream: VideoStream) -> float | None:
    """Length of the video stream as the header says; Matroska keeps it in a tag, if at all.

    Matroska says when the video ends by a clock that may begin late.
    """
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    late = (container.format.name.startswith("matroska") and container.start_time) or 0
    begin_s = max(0, late) / 1_000_000
    tag = next((v for k, v in stream.metadata.items() if k.upper().startswith("DURATION")), "")
    parts = tag.split(":")
    if len(parts) == 3:
        try:
            end_s = int(parts[0]) * 3600 + int(parts[1]) * 60 + float(parts[2])
            return max(0.0, end_s - begin_s)
        except ValueError:
            pass
    return max(0.0, container.duration / 1_000_000 - begin_s) if container.duration else None


def _decord_doubt(
    container: InputContainer, stream: VideoStream, packets: Sequence[_Packet], trusted: bool
) -> str | None:
    """Why decord's random access may return wrong frames of an intact file, or `None`.

    Damage inside a stream is no reason here: decord conceals it, and nothing reports it.
    """
    codec, pixel_format = stream.codec_context.name, stream.codec_context.pix_fmt
    name, videos = container.format.name, len(container.streams.video)
    doubts = (
        (codec != "h264", f"codec {codec}"),
        (pixel_format not in _DECORD_PIXEL_FORMATS, f"pixel format {pixel_format}"),
        (not name.startswith(SEEKABLE_CONTAINERS), f"container {name}"),
        (videos != 1, f"{videos} video streams"),
        (not trusted, "frame times are missing or repeated"),
        (any(packet.hidden for packet in packets), "an edit list hides frames"),
    )
    doubt = next((reason for applies, reason in doubts if applies), None)
    return doubt or _order_doubt(container, stream, packets)


def _order_doubt(
    container: InputContainer, stream: VideoStream, packets: Sequence[_Packet]
) -> str | None:
    """The same by the order and the times of the packets, all of which have a time."""
    keyframe = None
    for packet in packets:
        assert packet.pts is not None
        if packet.is_keyframe:
            keyframe = packet.pts
        elif keyframe is None or packet.pts < keyframe:
            return "open groups of pictures"
    ticks = np.sort(np.array([packet.pts for packet in packets], dtype=np.int64))
    if ticks[0] * float(stream.time_base or 0) > max(0, container.start_time or 0) / 1e6 + 1e-3:
        return "the video starts late (edit list)"
    if ticks[0] < 0:
        return "negative frame times"
    steps = np.diff(ticks)
    # Matroska rounds to milliseconds, so steps of a constant rate differ by one tick.
    return "variable frame rate" if len(steps) and np.ptp(steps) > 1 else None


def _lost_of_avi(
    path: str, promised: Sequence[_Entry], read: Sequence[_Entry], announced: int
) -> list[tuple[int, int]]:
    """Find a stretch of an AVI not to be trusted, as (last number before, number of the end).

    Where packets are lost, those behind have wrong numbers, because FFmpeg counts on. Where the
    index is damaged, too, only the header's number of frames is left to compare with (`announced`:
    dropped ones included, 0 if it does not say). A file that was cut off has lost nothing inside.
    """
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8)[4:], "little")
        if not read or size == 0 or os.path.getsize(path) < size + 8:
            return []
        there = {(packet.position, packet.size) for packet in read}
        lost = [e for e in promised if e.size and (e.position, e.size) not in there]
        numbers = []
        for entry in lost:
            file.seek(max(0, entry.position - _CHUNK_HEADER))
            if file.read(4)[2:] != b"pc":  # a change of colours, which is no packet
                numbers.append(entry.number)
    end = max(announced, *(packet.number + 1 for packet in [*read, *promised]))
    if numbers:
        kept = [e.number for e in promised if (e.position, e.size) in there]
        return [(max((n for n in kept if n < min(numbers)), default=0), end)]
    is_indexed = there <= {(entry.position, entry.size) for entry in promised}
    if is_indexed or max(packet.number for packet in read) + 1 == end:
        return []
    return [(0, end)]


def _skipped(path: str, index: PacketIndex) -> list[tuple[int, int]]:
    """Stretches without packets in a file that FFmpeg could not read in one go.

    More than one frame may be missing there; a variable frame rate looks the same, so the packets
    are read again for what FFmpeg reports.
    """
    steps = np.diff(index.shown)
    if not (index.trusted and len(steps) and index.container.startswith(RESYNCING_CONTAINERS)):
        return []
    shown = index.shown
    longest = 2.5 * float(np.median(steps))
    holes = [(int(shown[at]), int(shown[at + 1])) for at in np.flatnonzero(steps > longest)]
    if index.duration_s is not None:
        end, announced = (
            round((s + index.origin_s) / index.time_base) for s in (index.end_s, index.duration_s)
        )
        if announced - end > longest:
            holes.append((int(shown[-1]), announced))
    return holes if holes and _reports_damage(path) else []


def _reports_damage(path: str) -> bool:
    """Read all packets again; whether FFmpeg reports bytes that it skipped.

    It reports them only in its log. The early end of a file does not count.
    """
    import av

    problems: list[str] = []
    level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    # A message that equals the one of the file before must be reported, too.
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as messages, opened(path) as (container, stream):
            name = container.format.name
            for _ in read_packets(container, stream, problems):
                pass
    except VideoDecodeError:
        return True
    finally:
        av.logging.set_skip_repeated(skips)
        av.logging.set_level(level)
    return bool(problems) or any(
        source == name and _CUT_OFF not in text for _, source, text in messages
    )
