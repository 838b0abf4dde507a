"""Every video decoder on a small clip, and the embedded model on one question."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from jobs.doctor.checks import CheckResult, note, ok, problem

if TYPE_CHECKING:
    from tango_core.types import VideoFrames
    from tango_core.video import DecoderName

# Every frame has one grey level. H.264 changes a level by one or two, far less than half a step.
_NUM_FRAMES, _SIDE, _STEP = 24, 64, 10


def video_decoder(name: DecoderName, chosen: str = "auto") -> CheckResult:
    """Decode all frames of a small clip, then some of them, and compare their contents.

    Args:
        name: The decoder.
        chosen: The recipe's `decode.decoder`.
    """
    from tango_core.video import (
        DecoderUnavailableError,
        FrameSpec,
        decode_frames,
        decoder_versions,
    )

    try:
        version = decoder_versions(name)
    except DecoderUnavailableError as error:
        if name == chosen:
            return problem(str(error))
        if find_spec(name) is None:
            return ok(f"not installed; only decode.decoder: {name} needs it")
        return note(str(error))
    with grey_clip() as (path, levels):
        for number in (_NUM_FRAMES, 5):
            frames = decode_frames(str(path), FrameSpec(num_frames=number, decoder=name))
            if not frames_match(frames, levels):
                return problem(
                    f"{version} returns the wrong frames; set decode.decoder to another one"
                )
    return ok(f"{version} reads H.264, all frames and selected frames")


def frames_match(frames: VideoFrames, levels: npt.NDArray[np.int64]) -> bool:
    """Whether every frame has the grey level of its timestamp, and no frame comes twice."""
    seconds = np.rint(frames.timestamps).astype(int)
    expected = levels[seconds][:, None, None, None]
    largest_error = np.abs(frames.pixels.astype(int) - expected).max()
    return len(set(seconds)) == len(seconds) and bool(largest_error < _STEP / 2)


def embedded_model() -> CheckResult:
    """Ask the embedded model one question about a generated clip."""
    from tango_core.ask import VideoChat
    from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark
    from tango_core.models.placement import resolve_device

    device = resolve_device("auto")
    with tempfile.TemporaryDirectory() as directory:
        (item,) = ShapesBenchmark(root=directory).items(1)
        question = item.questions[0]
        chat = VideoChat("tiny")
        answer = chat.ask(item.path, question.text, question.choices, method="tango", retention=0.5)
    text = f"{question.text} {answer.text.strip()!r} on the {str(device).upper()}"
    if chat.spec.note:
        return note(f"{text}; {chat.spec.note}")
    if answer.choice != question.answer:
        return note(f"{text}: wrong, which can happen; `tango evaluate` measures how often")
    return ok(f"{text}: right")


@contextmanager
def grey_clip() -> Iterator[tuple[Path, npt.NDArray[np.int64]]]:
    """A temporary video with one frame per second, and the grey level of each frame."""
    from tango_core.benchmarks.shapes.benchmark import write_mp4

    levels = 8 + _STEP * np.arange(_NUM_FRAMES)
    frames = np.broadcast_to(levels[:, None, None, None], (_NUM_FRAMES, _SIDE, _SIDE, 3))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        write_mp4(path, frames.astype(np.uint8), Fraction(1))
        yield path, levels
