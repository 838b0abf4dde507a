"""Index a video file without decoding it: its streams and the time of each frame."""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tango_core.local_files import identity
from tango_core.video.headers import sample_times
from tango_core.video.reader import Indices, Times, opened, read_packets

if TYPE_CHECKING:
    from av.container import InputContainer
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
# Part of the names of stored indices; of files with fewer packets none is stored.
_REVISION, _STORED_FROM = 1, 3000
# Flags of FFmpeg's index entries.
_KEYFRAME, _DISCARDED = 1, 2
# Packets that are read at the start and at the end of a file whose tables are used.
_COMPARED = 500
# Bytes of the name and the size of a chunk of AVI, in front of its content.
_CHUNK_HEADER = 8
# decord and PyAV give equal bytes for these; on 10-bit video they differ by up to 48 of 255.
_DECORD_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_CUT_OFF = "File ended prematurely"


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
        ticks: Presentation ticks of all packets, also of hidden ones, ascending.
        places: Position in the file of the packet of each of them.
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
    ticks: Indices = field(repr=False)
    places: Indices = field(repr=False)
    keyframes: Indices = field(repr=False)
    end_s: float
    numbers: Indices = field(repr=False)
    reordered: bool
    holes: Indices = field(repr=False)
    problem: str

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

    def place(self, tick: int | None) -> int:
        """Position in the file of the packet with a presentation tick; -1 for none."""
        at = -1 if tick is None else int(np.searchsorted(self.ticks, tick, side="right")) - 1
        return int(self.places[at]) if at >= 0 and self.ticks[at] == tick else -1

    def seconds(self, ticks: Indices) -> Times:
        """Convert presentation ticks to seconds from the start of the file, never negative."""
        stamps = ticks * self.time_base.numerator / self.time_base.denominator
        return np.maximum(stamps - self.origin_s, 0.0).astype(np.float64)


_UNKNOWN = np.iinfo(np.int64).min
# Presentation and decoding tick, duration, whether it is a keyframe and whether hidden, position in
# bytes (-1 if unknown) and size.
_NAMES = ("pts", "dts", "duration", "is_keyframe", "hidden", "position", "size")
_PACKET = np.dtype([(name, np.bool_ if name in _NAMES[3:5] else np.int64) for name in _NAMES])
Packets = npt.NDArray[np.void]
"""Packets of a stream in the order of the file, of the type `_PACKET`."""


# Where the content of an AVI's packet begins, its bytes, and the number of its frame.
_Entry = tuple[int, int, int]


def read_index(path: str, folder: str | None = None) -> PacketIndex:
    """Find all packets of a file's video stream, without decoding any.

    They are read, except in an mp4 or QuickTime file whose tables agree with some that are read.

    Args:
        path: The file.
        folder: Directory in which the indices of long files are kept; `None` for none.

    Raises:
        VideoDecodeError: If the file cannot be opened as a video.
    """
    stored = None if folder is None else _place_in(folder, path)
    if stored is not None and (known := _load(stored)) is not None:
        return known
    with opened(path) as (container, stream):
        packets = _packets_of_mov(path, container, stream)
        index = None
        if packets is not None or not container.format.name.startswith("mov"):
            index = _index_of(path, container, stream, packets)
    if index is None:
        with opened(path) as (container, stream):  # at its start again
            index = _index_of(path, container, stream, None)
    if stored is not None and len(index.ticks) >= _STORED_FROM:
        _save(index, stored)
    return index


def _index_of(
    path: str, container: InputContainer, stream: VideoStream, packets: Packets | None
) -> PacketIndex:
    """The index of a file from its packets, which are read if they are not known."""
    # FFmpeg adds to the index of an AVI what it reads, so it is read before the first packet.
    is_avi = container.format.name == "avi"
    promised = [
        (entry.pos + _CHUNK_HEADER, entry.size, entry.timestamp)
        for entry in (stream.index_entries if is_avi else ())
    ]
    problems: list[str] = []
    is_damaged = False
    if packets is None:
        with _errors_of(container.format.name) as errors:
            packets = np.fromiter(_read(container, stream, problems), _PACKET)
        # The early end of a file does not count.
        is_damaged = bool(problems) or any(_CUT_OFF not in error for error in errors)
    index = _build_index(container, stream, packets, "".join(problems))
    if is_avi:
        numbers = np.where(packets["dts"] == _UNKNOWN, 0, packets["dts"])
        read = np.stack([packets["position"], packets["size"], numbers], axis=1).tolist()
        holes = _lost_of_avi(path, promised, read, stream.frames)
    else:
        holes = _skipped(index) if is_damaged else []
    return replace(index, holes=np.array(holes, dtype=np.int64).reshape(-1, 2))


@contextmanager
def _errors_of(name: str) -> Iterator[list[str]]:
    """Collect what FFmpeg's demuxer `name` reports in its log, if it says it nowhere else."""
    import av

    texts: list[str] = []
    level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    # A message that equals the one of the file before must be reported, too.
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as messages:
            yield texts
        if name.startswith(RESYNCING_CONTAINERS):
            texts += [text for _, source, text in messages if source == name]
    finally:
        av.logging.set_skip_repeated(skips)
        av.logging.set_level(level)


def _place_in(folder: str, path: str) -> Path | None:
    """Where the index of the current content of a file is kept; `None` if it cannot be told."""
    import av

    try:
        content = identity(Path(path), hash_content=False)
    except (OSError, ValueError):
        return None
    versions = av.__version__, av.ffmpeg_version_info, _REVISION
    key = hashlib.sha256(f"{content}|{versions}".encode()).hexdigest()[:32]
    return Path(folder, key[:2], f"{key}.npz")


_ARRAYS = ("shown", "ticks", "places", "keyframes", "numbers", "holes")


def _save(index: PacketIndex, file: Path) -> None:
    """Write an index to a file; without effect if that is not possible."""
    facts = {one.name: getattr(index, one.name) for one in fields(index) if one.name not in _ARRAYS}
    facts["time_base"] = index.time_base.as_integer_ratio()
    arrays = {name: np.diff(getattr(index, name), prepend=0, axis=0) for name in _ARRAYS}
    half = file.with_name(f".{uuid.uuid4().hex}.npz")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            np.savez_compressed(half, facts=np.array(json.dumps(facts)), **arrays)
            half.replace(file)
        finally:
            half.unlink(missing_ok=True)


def _load(file: Path) -> PacketIndex | None:
    """Read an index from a file; `None` if there is none that can be read."""
    try:
        with np.load(file) as stored:
            facts = json.loads(str(stored["facts"]))
            facts["time_base"] = Fraction(*facts["time_base"])
            return PacketIndex(**facts, **{name: stored[name].cumsum(axis=0) for name in _ARRAYS})
    except Exception:  # any, from numpy, zipfile or zlib: any byte may have changed
        return None


def _read(
    container: InputContainer, stream: VideoStream, problems: list[str]
) -> Iterator[tuple[int, int, int, bool, bool, int, int]]:
    """Yield the packets of a stream as `_PACKET`."""
    is_vp8 = stream.codec_context.name == "vp8"
    for packet in read_packets(container, stream, problems):
        pts, dts, position = packet.pts, packet.dts, packet.pos
        yield (
            _UNKNOWN if pts is None else pts,
            _UNKNOWN if dts is None else dts,
            packet.duration or 0,
            packet.is_keyframe,
            # Of VP8, RFC 6386, 9.1: bit 4 is `show_frame`.
            packet.is_discard or (is_vp8 and not memoryview(packet)[0] & 0x10),
            -1 if position is None else position,
            packet.size,
        )


def _packets_of_mov(path: str, container: InputContainer, stream: VideoStream) -> Packets | None:
    """The packets of an mp4 or QuickTime file by its tables; `None` where they do not say them all.

    The first packets and those behind the last keyframe are read and must be equal: then the tables
    of times, sizes and places are of the same samples.
    """
    if not container.format.name.startswith("mov") or not len(stream.index_entries):
        return None
    entries = np.array([(e.timestamp, e.pos, e.size, e.flags) for e in stream.index_entries])
    times = sample_times(path, stream.id)
    if times is None or not len(times[0]) == len(times[1]) == len(entries):
        return None
    packets = np.zeros(len(entries), _PACKET)
    packets["duration"] = times[0]
    packets["pts"] = entries[:, 0] + times[1]
    packets["dts"], packets["position"], packets["size"] = entries[:, :3].T
    packets["is_keyframe"] = entries[:, 3] & _KEYFRAME
    packets["hidden"] = entries[:, 3] & _DISCARDED
    keys = np.flatnonzero(packets["is_keyframe"])
    ends = packets["position"] + packets["size"]
    if packets["hidden"].any() or not len(keys) or ends.max() > os.path.getsize(path):
        return None
    problems: list[str] = []
    for place in (0, int(keys[-1])):
        if place:
            container.seek(int(packets["dts"][place]), stream=stream)
        read = np.fromiter(islice(_read(container, stream, problems), _COMPARED), _PACKET)
        first = np.flatnonzero(np.isin(packets["position"], read["position"][:1]))
        if problems or len(first) != 1:
            return None
        expected = packets[int(first[0]) :][: len(read)]
        if place == 0:  # FFmpeg shifts times if offsets are negative
            packets["pts"] += read["pts"][0] - expected["pts"][0]
        if len(read) != len(expected) or not (read == expected).all():
            return None
    return packets


def _build_index(
    container: InputContainer, stream: VideoStream, packets: Packets, problem: str
) -> PacketIndex:
    """Sort packets into display order and judge how far their times can be trusted."""
    name = container.format.name
    time_base = stream.time_base or Fraction(1, 1_000_000)
    pts, dts = packets["pts"], packets["dts"]
    places = np.argsort(pts, kind="stable")
    places = places[pts[places] != _UNKNOWN]
    ticks = pts[places]
    is_shown = ~packets["hidden"][places]
    shown = ticks[is_shown]
    trusted = name.split(",")[0] not in UNTIMED_CONTAINERS
    trusted = trusted and 0 < len(packets) == len(ticks) and bool((np.diff(ticks) > 0).all())
    decord_doubt = _decord_doubt(container, stream, packets, trusted)
    keys = places[packets["is_keyframe"][places]]
    key_dts = np.where(dts[keys] == _UNKNOWN, pts[keys], dts[keys])
    known_dts = dts[dts != _UNKNOWN]
    numbers = np.unique(known_dts)
    if not name.startswith(NUMBERED_CONTAINERS) or len(numbers) < len(packets):
        numbers = numbers[:0]
    rate = stream.average_rate or stream.guessed_rate
    if rate and _num_left_out(numbers):
        rate = rate * len(numbers) / (len(numbers) + _num_left_out(numbers))
    origin_s = (container.start_time or 0) / 1_000_000
    if origin_s < 0:
        # MPEG time stamps before a wrap of their 33 bits are negative. In other containers a
        # negative start is mostly that of the sound, and the video begins at 0.
        origin_s = min(0.0, float(int(shown[0]) * time_base)) if len(shown) else 0.0
    ends = shown + packets["duration"][places][is_shown]
    last_tick = int(ends.max(initial=_UNKNOWN)) if len(ends) else 0
    if name in RATELESS_CONTAINERS:
        problem = problem or (
            f"a raw stream stores no times; its frames are taken as {float(rate or 0):g} per second"
        )
    restarts = int((np.diff(known_dts) * -float(time_base) > RESTART_S).sum())
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
        trusted=trusted and len(shown) > 0,
        shown=shown,
        ticks=ticks,
        places=places,
        keyframes=np.stack([pts[keys], key_dts, keys], axis=1),
        end_s=float(last_tick * time_base) - origin_s,
        numbers=numbers,
        reordered=bool((pts != dts).any()),
        holes=np.zeros((0, 2), dtype=np.int64),
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
    if found := re.fullmatch(r"(\d+):(\d+):([\d.]+)", tag):
        end_s = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        return max(0.0, end_s - begin_s)
    return max(0.0, container.duration / 1_000_000 - begin_s) if container.duration else None


def _decord_doubt(
    container: InputContainer, stream: VideoStream, packets: Packets, trusted: bool
) -> str | None:
    """Why decord's random access may return wrong frames of an intact file, or `None`.

    Damage inside a stream is no reason here: decord conceals it, and nothing reports it.
    """
    codec, pixel_format = stream.codec_context.name, stream.codec_context.pix_fmt
    name, videos = container.format.name, len(container.streams.video)
    pts = packets["pts"]
    last_key = np.maximum.accumulate(np.where(packets["is_keyframe"], np.arange(len(pts)), -1))
    ticks = np.sort(pts)
    steps = np.diff(ticks)
    first_s = float(ticks[:1].sum() * (stream.time_base or 0))
    doubts = (
        (codec != "h264", f"codec {codec}"),
        (pixel_format not in _DECORD_PIXEL_FORMATS, f"pixel format {pixel_format}"),
        (not name.startswith(SEEKABLE_CONTAINERS), f"container {name}"),
        (videos != 1, f"{videos} video streams"),
        (not trusted, "frame times are missing or repeated"),
        (packets["hidden"].any(), "an edit list hides frames"),
        ((last_key < 0).any() or (pts < pts[last_key]).any(), "open groups of pictures"),
        (first_s > max(0, container.start_time or 0) / 1e6 + 1e-3, "the video starts late"),
        (first_s < 0, "negative frame times"),
        # Matroska rounds to milliseconds, so steps of a constant rate differ by one tick.
        (len(steps) and np.ptp(steps) > 1, "variable frame rate"),
    )
    return next((reason for applies, reason in doubts if applies), None)


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
        there = {(position, length) for position, length, _ in read}
        lost = [entry for entry in promised if entry[1] and entry[:2] not in there]
        numbers = []
        for position, _, number in lost:
            file.seek(max(0, position - _CHUNK_HEADER))
            if file.read(4)[2:] != b"pc":  # a change of colours, which is no packet
                numbers.append(number)
    end = max(announced, *(number + 1 for *_, number in [*read, *promised]))
    if numbers:
        kept = [entry[2] for entry in promised if entry[:2] in there]
        return [(max((n for n in kept if n < min(numbers)), default=0), end)]
    is_indexed = there <= {entry[:2] for entry in promised}
    if is_indexed or max(number for *_, number in read) + 1 == end:
        return []
    return [(0, end)]


def _skipped(index: PacketIndex) -> list[tuple[int, int]]:
    """Stretches without packets in a damaged file in which FFmpeg searched for the next ones.

    More than one frame may be missing there; a variable frame rate looks the same.
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
    return holes
