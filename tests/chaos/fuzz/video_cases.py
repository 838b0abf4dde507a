"""Damaged videos, through the decode stage, beside a second decoder that reads from the start."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple
from unittest import TestCase

import av
import numpy as np

from pipeline.clips import Clip
from pipeline.runtime.child import Child, CrashError
from pipeline.stages.decode import decode_video
from tango_core.video import FrameSpec
from tests.chaos.fuzz.damage import Mutation, Outcome, apply, draw
from tests.fixtures.numbered_videos import CLOSED_GOP, number_of, write_clip

NUM_FRAMES, MOST_FRAMES = 8, 2_000
MEMORY_GIB = 2.0
LIMIT_S = 30.0
# A kill and a start of a new child on a busy machine.
_GRACE_S = 60.0
_SLACK_S = 1e-4
GARBLED = "ok, a damaged picture that no decoder notices"
_CLIPS = (None, None, (0.0, 1.0), (0.7, 1.4), (1.0, 1.9), (1.6, 2.0))


class VideoCase(NamedTuple):
    """A video, what is done to it, and which part of it is asked for.

    Attributes:
        name: Entry of `VIDEOS`.
        mutations: Mutations in this order.
        clip: (start, end) in seconds; `None` for all.
    """

    name: str
    mutations: tuple[Mutation, ...]
    clip: tuple[float, float] | None = None


class Shown(NamedTuple):
    """A frame of the second decoder.

    Attributes:
        time_s: Seconds from the start of the file; `None` if the file has no times.
        digest: Digest of its (h, w, 3) uint8 pixels.
        number: Number that its barcode carries.
    """

    time_s: float | None
    digest: str
    number: int


def decode_everything(path: str) -> list[Shown]:
    """All frames of a file's first video in the order in which they come out, by PyAV alone.

    It shares nothing with the readers that are judged: no index, no seeking, no strictness.

    Raises:
        OSError: If the file cannot be opened, or has no video.
        ValueError: Likewise.
    """
    found: list[Shown] = []
    hidden: set[int | None] = set()
    with av.open(path, metadata_errors="replace") as container:
        stream = container.streams.best("video")
        if stream is None:
            raise ValueError("no video stream")
        stream.codec_context.thread_count = 1
        origin = max(0, container.start_time or 0) / 1e6
        packets = container.demux(stream)
        while len(found) < MOST_FRAMES:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError):
                packet = None
            is_last = packet is None or not packet.size
            try:
                frames = stream.codec_context.decode(None if is_last else packet)
            except av.FFmpegError:
                frames = []
            if packet is not None and packet.is_discard:
                hidden.add(packet.pts)
            for frame in frames:
                if frame.pts is not None and frame.pts in hidden:  # by the file's edit list
                    continue
                # Upright, as its display matrix says.
                pixels = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4)
                time_s = None
                if stream.time_base is not None and frame.pts is not None:
                    time_s = max(0.0, float(frame.pts * stream.time_base) - origin)
                found.append(Shown(time_s, digest_of(pixels), number_of(pixels)))
            if is_last:
                break
    return found


def digest_of(pixels: np.ndarray) -> str:
    """What tells two pictures apart."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()[:20]


def video_case(seed: int) -> VideoCase:
    """The case of a seed."""
    dice = random.Random(f"video {seed}")
    name = sorted(VIDEOS)[seed % len(VIDEOS)]
    return VideoCase(name, draw(video(name), dice), dice.choice(_CLIPS))


def judged(case: VideoCase) -> Outcome:
    """Decode a case with both decoders."""
    path = folder() / case.name
    path.write_bytes(apply(video(case.name), case.mutations))
    return Outcome("videos", case.name, *_judge(path, case), case.mutations)


def _judge(path: Path, case: VideoCase) -> tuple[str, str]:
    """What happened, and the problem."""
    start, end = case.clip or (None, None)
    row = Clip(benchmark="b", video_id="v", path=str(path), clip_start=start, clip_end=end)
    begun = time.monotonic()
    spec = FrameSpec(NUM_FRAMES)
    try:  # errors that the stage does not know go to its log, with a traceback
        with TestCase().assertNoLogs("pipeline.stages.decode", "WARNING"):
            out = decode_video(row, spec=spec, timeout_s=LIMIT_S, memory_gib=MEMORY_GIB)
    except AssertionError as unexpected:
        return "traceback", f"the log gets a traceback: {unexpected}"
    taken = time.monotonic() - begun
    if taken > LIMIT_S + _GRACE_S:
        return "hang", f"decoding took {taken:.0f} s, and may take {LIMIT_S:.0f}"
    error = out.error
    if error is not None and ("\n" in error or "Traceback" in error or not error):
        return "traceback", f"the error has more than one line: {error!r}"
    if out.status != "ok":
        if (error is None) or out.frames is not None:
            return "no reason", f"status {out.status} with error {error!r}"
        return f"row {out.status}", ""
    try:
        shown = _second().call(
            decode_everything, str(path), timeout_s=LIMIT_S, about=path.name, what="second decoder"
        )
    except (CrashError, TimeoutError, MemoryError):
        return "ok, second decoder ended", ""
    except (ValueError, OSError) as refused:
        return "ok", f"the second decoder cannot read it ({refused}), and the status is ok"
    problem = _compared(out, shown, case)
    if problem == GARBLED:
        return GARBLED, ""
    if problem:
        return "wrong frames", f"{problem}; warnings {out.warnings}"
    if [frame.number for frame in shown] == list(range(48)):
        return "ok, as the intact file", ""
    return ("ok with a warning" if out.warnings else "ok, both decoders agree"), ""


def _compared(out: Clip, shown: Sequence[Shown], case: VideoCase) -> str:
    """What of the delivered frames the second decoder does not show; "" for nothing."""
    assert out.frames is not None
    times = out.frames.timestamps.tolist()
    digests = [digest_of(picture) for picture in out.frames.pixels]
    numbers = [number_of(picture) for picture in out.frames.pixels]
    known = {frame.digest for frame in shown}
    strange = [n for n, digest in zip(numbers, digests, strict=True) if digest not in known]
    if strange and _is_garbled(times, digests, shown, case.name):
        return GARBLED
    if strange:
        return f"frames {strange} are none of the second decoder's"
    if not any(frame.time_s is None for frame in shown) and not case.name.endswith(".avi"):
        for at, digest in zip(times, digests, strict=True):
            then = _at(shown, at)
            if digest not in [frame.digest for frame in then]:
                second = [frame.number for frame in then]
                return f"delivered {numbers} at {times}; at {at:.4f} s the second shows {second}"
    return ""


def _at(shown: Sequence[Shown], time_s: float) -> list[Shown]:
    """The frames of the second decoder at a time."""
    return [frame for frame in shown if abs((frame.time_s or 0) - time_s) < _SLACK_S]


def _is_garbled(
    times: Sequence[float], digests: Sequence[str], shown: Sequence[Shown], name: str
) -> bool:
    """Whether every strange picture is one of a stream that no decoder knows to be damaged.

    What VP8 makes of changed bytes depends on what it decoded before the last keyframe, so that two
    decoders that begin elsewhere differ. Both must then show a picture that the intact file lacks.
    """
    intact = _intact(name)
    for at, digest in zip(times, digests, strict=True):
        then = {frame.digest for frame in _at(shown, at)}
        if digest not in then and (digest in intact or not then or then & intact):
            return False
    return True


@cache
def _intact(name: str) -> frozenset[str]:
    """All pictures of the undamaged video."""
    path = folder() / f"intact-{name}"
    path.write_bytes(video(name))
    return frozenset(frame.digest for frame in decode_everything(str(path)))


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="fuzz-"))


@cache
def _second() -> Child:
    return Child(memory_gib=MEMORY_GIB)


RATE = 24

_X264 = {"x264-params": CLOSED_GOP["x264-params"].replace("=24", "=12")}
_X265 = {
    "x265-params": "log-level=error:open-gop=0:bframes=3:keyint=12:min-keyint=12:scenecut=0:"
    "pools=none:frame-threads=1"
}
_MPEG = {"g": "12", "bf": "2", "qscale": "3"}
# name of the file -> codec, its options
VIDEOS: dict[str, tuple[str, dict[str, str]]] = {
    "h264.mp4": ("libx264", _X264),
    "hevc.mp4": ("libx265", _X265),
    "av1.mp4": ("libsvtav1", {"preset": "12", "g": "12"}),
    "h264.mov": ("libx264", _X264),
    "vp9.mkv": ("libvpx-vp9", {"g": "12", "deadline": "good", "cpu-used": "5"}),
    "h264.mkv": ("libx264", _X264),
    "vp8.webm": ("libvpx", {"g": "12", "deadline": "good", "cpu-used": "5"}),
    "mpeg4.avi": ("mpeg4", {**_MPEG, "bf": "0"}),
    "h264.ts": ("libx264", _X264),
    "mpeg2.mpg": ("mpeg2video", _MPEG),
    "flv1.flv": ("flv", {"g": "12", "qscale": "3"}),
    "pictures.gif": ("gif", {}),
}


@cache
def video(name: str) -> bytes:
    """The bytes of one of `VIDEOS`, written once per process."""
    codec, options = VIDEOS[name]
    pixel_format = "rgb8" if codec == "gif" else "yuv420p"
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_clip(path, 48, codec=codec, rate=RATE, options=options, pixel_format=pixel_format)
        return path.read_bytes()
