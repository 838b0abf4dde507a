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

from pipeline.stages.child import Child, CrashError
from pipeline.stages.decode import decode_video
from tango_core.video import FrameSpec
from tests.chaos.fuzz.cases import Outcome
from tests.chaos.fuzz.damage import Mutation, apply, draw
from tests.chaos.fuzz.second_decoder import Shown, decode_everything, digest_of
from tests.chaos.fuzz.videos import VIDEOS, video
from tests.fixtures.numbered_videos import number_of

NUM_FRAMES = 8
MEMORY_GIB = 2.0
LIMIT_S = 30.0
# A kill and a start of a new child on a busy machine.
_GRACE_S = 60.0
_SLACK_S = 1e-4
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
    row = {"video_id": "v", "path": str(path), "clip_start": start, "clip_end": end}
    begun = time.monotonic()
    spec = FrameSpec(NUM_FRAMES)
    with _unexpected() as unexpected:
        out = decode_video(row, spec=spec, timeout_s=LIMIT_S, memory_gib=MEMORY_GIB)
    taken = time.monotonic() - begun
    if unexpected:
        return "traceback", f"the log gets a traceback: {unexpected[0]}; error {out['error']!r}"
    if taken > LIMIT_S + _GRACE_S:
        return "hang", f"decoding took {taken:.0f} s, and may take {LIMIT_S:.0f}"
    error = out["error"]
    if error is not None and ("\n" in error or "Traceback" in error or not error):
        return "traceback", f"the error has more than one line: {error!r}"
    if out["status"] != "ok":
        if (error is None) or out["pixels"] is not None:
            return "no reason", f"status {out['status']} with error {error!r}"
        if "crashed with" in error:
            return "decoder crashed, row failed", ""
        if "no result from the decoder" in error:
            return "decoder hung, row failed", ""
        if "needed more than" in error:
            return "memory limit, row failed", ""
        return f"row {out['status']}", ""
    try:
        shown = _second().call(
            decode_everything, str(path), timeout_s=LIMIT_S, about=path.name, what="second decoder"
        )
    except (CrashError, TimeoutError, MemoryError):
        return "ok, second decoder ended", ""
    except (ValueError, OSError) as refused:
        return "ok", f"the second decoder cannot read it ({refused}), and the status is ok"
    problem = _compared(out, shown, case)
    if problem:
        return "wrong frames", f"{problem}; warnings {out['warnings']}"
    if [frame.number for frame in shown] == list(range(48)):
        return "ok, as the intact file", ""
    return ("ok with a warning" if out["warnings"] else "ok, both decoders agree"), ""


def _compared(out: dict[str, object], shown: Sequence[Shown], case: VideoCase) -> str:
    """What of the delivered frames the second decoder does not show; "" for nothing."""
    pixels = np.frombuffer(out["pixels"], np.uint8).reshape(out["pixels_shape"])  # type: ignore[call-overload]
    times: list[float] = out["frame_times"]  # type: ignore[assignment]
    digests = [digest_of(picture.tobytes(), picture.shape) for picture in pixels]
    numbers = [number_of(picture) for picture in pixels]
    known = {frame.digest for frame in shown}
    strange = [n for n, digest in zip(numbers, digests, strict=True) if digest not in known]
    if strange:
        return f"frames {strange} are none of the second decoder's"
    if not any(frame.time_s is None for frame in shown) and not case.name.endswith(".avi"):
        for at, digest in zip(times, digests, strict=True):
            if not any(
                f.digest == digest and abs((f.time_s or 0) - at) < _SLACK_S for f in shown
            ):
                then = [f.number for f in shown if abs((f.time_s or 0) - at) < _SLACK_S]
                return f"delivered {numbers} at {times}; at {at:.4f} s the second shows {then}"
    if case.clip is not None:
        return ""
    wanted = [shown[at] for at in np.linspace(0, len(shown) - 1, NUM_FRAMES).astype(int)]
    if [frame.digest for frame in wanted] != digests:
        theirs = [frame.number for frame in wanted]
        return f"delivered {numbers}, in order the second decoder gives {theirs} of {len(shown)}"
    return ""


@contextmanager
def _unexpected() -> Iterator[list[str]]:
    """What the stage tells its log; it does so, with a traceback, of errors that it does not know."""
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
