"""Index a video file without decoding it: what it holds, and when each frame is shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tango_core.video.readers.base import Indices, Times
from tango_core.video.readers.container import demuxed, opened, real_videos
from tango_core.video.readers.doubts import SEEKABLE_CONTAINERS, decord_doubt
from tango_core.video.readers.holes import (
    RESYNCING_CONTAINERS,
    ReadPacket,
    lost_of_avi,
    reports_damage,
    suspicious_gaps,
)

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

# Containers without presentation times: what FFmpeg reports for these is guessed from the order of
# packets.
UNTIMED_CONTAINERS = ("avi", "h264", "hevc", "m4v", "mpegvideo", "ivf", "obu")
# Of these, raw streams, for which FFmpeg assumes 25 frames per second.
RATELESS_CONTAINERS = ("h264", "hevc", "m4v", "mpegvideo", "obu")
# Of these, the ones that number their packets; the number of a dropped frame has no packet.
NUMBERED_CONTAINERS = ("avi", "ivf")
# Seconds by which a time stamp must be smaller than the one before for a new recording to begin; as
# the command ffmpeg decides it for MPEG streams.
RESTART_S = 0.1
# Bytes of the name and the size of a chunk of AVI, in front of its content.
_CHUNK_HEADER = 8


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says about itself, and what its packets say.

    Attributes:
        container: FFmpeg's name of the format, e.g. `"mov,mp4,m4a,3gp,3g2,mj2"`.
        codec: Of the chosen video stream, e.g. `"h264"`.
        pixel_format: Of the chosen stream, e.g. `"yuv420p"`; "" if unknown before decoding.
        width: Stored width in pixels, before any rotation.
        height: Stored height in pixels.
        rate: Frames per second on average, dropped frames not counted; `None` if the file does not
            say.
        num_frames: Frames that are shown, counted from the packets; `None` where only decoding can
            tell.
        duration_s: Length that the header announces in seconds; `None` if it does not.
        stream: Index of the chosen stream in the container.
        num_video_streams: Video streams, cover pictures not counted.
        num_audio_streams: Audio streams.
        decord_doubt: Why decord may return other frames than the file has, or `None` if it is exact
            where the stream is intact.
    """

    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    rate: float | None
    num_frames: int | None
    duration_s: float | None
    stream: int
    num_video_streams: int
    num_audio_streams: int
    decord_doubt: str | None


@dataclass(frozen=True, eq=False)
class PacketIndex:
    """Every packet of the chosen stream in the order of the file.

    Attributes:
        info: The summary.
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

    info: VideoInfo
    time_base: Fraction
    origin_s: float
    trusted: bool
    shown: Indices
    positions: dict[int, int] = field(repr=False)
    keyframes: Indices = field(repr=False)
    end_s: float
    numbers: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    reordered: bool = False
    holes: Indices = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64), repr=False)
    problem: str = ""

    @property
    def seekable(self) -> bool:
        """Whether decoding may start at any keyframe."""
        return self.trusted and self.info.container.startswith(SEEKABLE_CONTAINERS)

    @property
    def stores_times(self) -> bool:
        """Whether a frame that is shown before the one in front of it is a fault of the file.

        Times of a damaged index repeat, so that they are not trusted; they are what the file says.
        """
        return self.trusted or self.info.container.startswith(SEEKABLE_CONTAINERS)

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


def read_index(path: str) -> PacketIndex:
    """Read all packets of a file's video stream, without decoding any.

    Raises:
        VideoDecodeError: If the file cannot be opened as a video.
    """
    import av

    with opened(path) as (container, stream):
        packets: list[_Packet] = []
        problem = ""
        promised = _avi_index(container, stream)
        try:
            for packet in demuxed(container, stream):
                if packet.size:
                    hidden = packet.is_discard or _is_hidden(packet, stream.codec_context.name)
                    packets.append(
                        _Packet(
                            packet.pts,
                            packet.dts,
                            packet.duration or 0,
                            packet.is_keyframe,
                            hidden,
                            -1 if packet.pos is None else packet.pos,
                            packet.size,
                        )
                    )
        except MemoryError:
            raise
        except (av.FFmpegError, OSError) as error:
            problem = f"reading stopped after {len(packets)} packets ({error.strerror})"
        index = _build_index(container, stream, packets, problem)
        holes = _skipped(path, index)
        if container.format.name == "avi":
            read = [ReadPacket(p.position, p.size, p.dts or 0) for p in packets]
            holes = lost_of_avi(path, promised, read, stream.frames)
    return replace(index, holes=np.array(holes, dtype=np.int64).reshape(-1, 2))


def _avi_index(container: InputContainer, stream: VideoStream) -> list[ReadPacket]:
    """The index of an AVI; FFmpeg adds to it what it reads, so ask before the first packet."""
    if container.format.name != "avi":
        return []
    return [ReadPacket(e.pos + _CHUNK_HEADER, e.size, e.timestamp) for e in stream.index_entries]


def _skipped(path: str, index: PacketIndex) -> list[tuple[int, int]]:
    """Stretches without packets in a file that FFmpeg could not read in one go."""
    holes: list[tuple[int, int]] = []
    if index.trusted and index.info.container.startswith(RESYNCING_CONTAINERS):
        end, announced = (
            None if s is None else round((s + index.origin_s) / index.time_base)
            for s in (index.end_s, index.info.duration_s)
        )
        assert end is not None
        holes = suspicious_gaps(index.shown, end, announced)
    return holes if holes and reports_damage(path) else []


def _is_hidden(packet: Packet[VideoStream], codec: str) -> bool:
    """Whether a VP8 packet is never shown (RFC 6386, 9.1: bit 4 is `show_frame`)."""
    return codec == "vp8" and not memoryview(packet)[0] & 0x10


def _build_index(
    container: InputContainer,
    stream: VideoStream,
    packets: list[_Packet],
    problem: str,
) -> PacketIndex:
    """Sort packets into display order and judge how far their times can be trusted."""
    known = [packet.pts for packet in packets if packet.pts is not None]
    untimed = container.format.name.split(",")[0] in UNTIMED_CONTAINERS
    trusted = not untimed and 0 < len(packets) == len(set(known))
    shown = sorted((p.pts, p.duration) for p in packets if not p.hidden and p.pts is not None)
    positions = {p.pts: at for at, p in enumerate(packets) if p.pts is not None}
    keyframes = sorted(
        (p.pts, p.pts if p.dts is None else p.dts, positions[p.pts])
        for p in packets
        if p.is_keyframe and p.pts is not None
    )
    numbers = _numbers(container, packets)
    rate = stream.average_rate or stream.guessed_rate
    if rate and _num_left_out(numbers):
        rate = rate * len(numbers) / (len(numbers) + _num_left_out(numbers))
    start = container.start_time or 0
    info = VideoInfo(
        container=container.format.name,
        codec=stream.codec_context.name,
        pixel_format=stream.codec_context.pix_fmt or "",
        width=stream.codec_context.width,
        height=stream.codec_context.height,
        rate=float(rate) if rate else None,
        num_frames=len(shown) if trusted else None,
        duration_s=_duration(container, stream),
        stream=stream.index,
        num_video_streams=len(real_videos(container)),
        num_audio_streams=len(container.streams.audio),
        decord_doubt=decord_doubt(container, stream, packets, trusted),
    )
    time_base = stream.time_base or Fraction(1, 1_000_000)
    origin_s = start / 1_000_000
    if start < 0:
        # MPEG time stamps before a wrap of their 33 bits are negative. In other containers a
        # negative start is mostly that of the sound, and the video begins at 0.
        origin_s = min(0.0, float(shown[0][0] * time_base)) if shown else 0.0
    last_tick = max((pts + duration for pts, duration in shown), default=0)
    if container.format.name in RATELESS_CONTAINERS:
        problem = problem or (
            f"a raw stream stores no times; its frames are taken as {float(rate or 0):g} per second"
        )
    restarts = _restarts(packets, time_base)
    if restarts:
        trusted = False
        problem = problem or (
            f"its time stamps start again {restarts} time{'s' if restarts > 1 else ''} (recordings "
            "that were joined); times go on from one part to the next"
        )
    return PacketIndex(
        info=info,
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


def _restarts(packets: list[_Packet], time_base: Fraction) -> int:
    """How often the decoding times of a file fall behind those before."""
    ticks = [packet.dts for packet in packets if packet.dts is not None]
    return sum(float((before - after) * time_base) > RESTART_S for before, after in pairwise(ticks))


def _numbers(container: InputContainer, packets: list[_Packet]) -> Indices:
    """Numbers of the packets of AVI and IVF, ascending; see `PacketIndex.numbers`."""
    numbers = sorted({packet.dts for packet in packets if packet.dts is not None})
    if not container.format.name.startswith(NUMBERED_CONTAINERS) or len(numbers) < len(packets):
        numbers = []
    return np.array(numbers, dtype=np.int64)


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
