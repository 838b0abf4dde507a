"""Damaged videos, through the decode stage, beside a second decoder that reads from the start."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from pipeline.clips import Clip
from pipeline.runtime.child import Child, CrashError
from pipeline.stages.decode import decode_video
from tango_core.video import FrameSpec
from tests.chaos.fuzz.damage import Mutation, Outcome, apply, draw
from tests.chaos.fuzz.second_decoder import Shown, decode_everything, digest_of
from tests.chaos.fuzz.videos import VIDEOS, video
from tests.fixtures.numbered_videos import number_of

NUM_FRAMES = 8
MEMORY_GIB = 2.0
LIMIT_S = 30.0
# A kill and a start of a new child on a busy machine.
_GRACE_S = 60.0
_SLACK_S = 1e-4
GARBLED = "ok, a damaged picture that no decoder notices"
# What an intact file shows; a file can lose other frames without harm.
INTACT = np.linspace(0, 47, NUM_FRAMES).astype(int).tolist()
_CLIPS = (None, None, (0.0, 1.0), (0.7, 1.4), (1.0, 1.9), (1.6, 2.0))


@dataclass(frozen=True)
class VideoCase:
    """A video, what is done to it, and which part of it is asked for.

    Attributes:
        name: Entry of `VIDEOS`.
        mutations: In this order.
        clip: (start, end) in seconds; `None` for all.
    """

    name: str
    mutations: tuple[Mutation, ...]
    clip: tuple[float, float] | None = None


def video_case(seed: int) -> VideoCase:
    """The case of a seed."""
    dice = random.Random(f"video {seed}")
    name = sorted(VIDEOS)[seed % len(VIDEOS)]
    return VideoCase(name, draw(video(name), dice), dice.choice(_CLIPS))


def judged(case: VideoCase) -> Outcome:
    """Decode a case with both decoders."""
    path = _folder() / case.name
    path.write_bytes(apply(video(case.name), case.mutations))
    return Outcome("videos", case.name, *_judge(path, case), case.mutations)


def _judge(path: Path, case: VideoCase) -> tuple[str, str]:
    """What happened, and the problem."""
    start, end = case.clip or (None, None)
    row = Clip(benchmark="b", video_id="v", path=str(path), clip_start=start, clip_end=end)
    begun = time.monotonic()
    spec = FrameSpec(NUM_FRAMES)
    with _unexpected() as unexpected:
        out = decode_video(row, spec=spec, timeout_s=LIMIT_S, memory_gib=MEMORY_GIB)
    taken = time.monotonic() - begun
    if unexpected:
        return "traceback", f"the log gets a traceback: {unexpected[0]}; error {out.error!r}"
    if taken > LIMIT_S + _GRACE_S:
        return "hang", f"decoding took {taken:.0f} s, and may take {LIMIT_S:.0f}"
    error = out.error
    if error is not None and ("\n" in error or "Traceback" in error or not error):
        return "traceback", f"the error has more than one line: {error!r}"
    if out.status != "ok":
        if (error is None) or out.pixels is not None:
            return "no reason", f"status {out.status} with error {error!r}"
        if "crashed with" in error:
            return "decoder crashed, row failed", ""
        if "no result from the decoder" in error:
            return "decoder hung, row failed", ""
        if "needed more than" in error:
            return "memory limit, row failed", ""
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
    pixels = np.frombuffer(out.pixels, np.uint8).reshape(out.pixels_shape)
    times = list(out.frame_times or ())
    digests = [digest_of(picture.tobytes(), picture.shape) for picture in pixels]
    numbers = [number_of(picture) for picture in pixels]
    known = {frame.digest for frame in shown}
    strange = [n for n, digest in zip(numbers, digests, strict=True) if digest not in known]
    if strange and _is_garbled(times, digests, shown, case.name):
        return GARBLED
    if strange:
        return f"frames {strange} are none of the second decoder's"
    if not any(frame.time_s is None for frame in shown) and not case.name.endswith(".avi"):
        for at, digest in zip(times, digests, strict=True):
            if not any(f.digest == digest and abs((f.time_s or 0) - at) < _SLACK_S for f in shown):
                then = [f.number for f in shown if abs((f.time_s or 0) - at) < _SLACK_S]
                return f"delivered {numbers} at {times}; at {at:.4f} s the second shows {then}"
    # Where a packet does not decode, the others are still what their times say.
    if case.clip is not None or numbers == INTACT or len(shown) < 48:
        return ""
    orders = [list(shown)]
    if all(frame.time_s is not None for frame in shown):
        in_time = sorted(shown, key=lambda f: f.time_s or 0)
        # A sample that decodes to several frames has one place in an index.
        first = {frame.time_s: frame for frame in reversed(in_time)}
        orders = [in_time, sorted(first.values(), key=lambda f: f.time_s or 0)]
    theirs = []
    for order in orders:
        wanted = [order[at] for at in np.linspace(0, len(order) - 1, NUM_FRAMES).astype(int)]
        if [frame.digest for frame in wanted] == digests:
            return ""
        theirs.append([frame.number for frame in wanted])
    return f"delivered {numbers}, in order the second decoder gives {theirs} of {len(shown)}"


def _is_garbled(
    times: Sequence[float], digests: Sequence[str], shown: Sequence[Shown], name: str
) -> bool:
    """Whether every strange picture is one of a stream that no decoder knows to be damaged.

    What VP8 makes of changed bytes depends on what it decoded before the last keyframe, so that two
    decoders that begin elsewhere differ. Both must then show a picture that the intact file lacks.
    """
    intact = _intact(name)
    for at, digest in zip(times, digests, strict=True):
        then = [f.digest for f in shown if abs((f.time_s or 0) - at) < _SLACK_S]
        if digest not in then and (digest in intact or not then or set(then) & intact):
            return False
    return True


@cache
def _intact(name: str) -> frozenset[str]:
    """All pictures of the undamaged video."""
    path = _folder() / f"intact-{name}"
    path.write_bytes(video(name))
    return frozenset(frame.digest for frame in decode_everything(str(path)))


@contextmanager
def _unexpected() -> Iterator[list[str]]:
    """What the stage tells its log: errors that it does not know, with a traceback."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("pipeline.stages.decode")
    log.addHandler(handler)
    propagates, log.propagate = log.propagate, False
    try:
        yield records
    finally:
        log.propagate = propagates
        log.removeHandler(handler)


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="fuzz-"))


@cache
def _second() -> Child:
    return Child(memory_gib=MEMORY_GIB)
