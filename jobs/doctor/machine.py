"""Python, packages, GPUs, CPUs, memory and video decoders; the embedded model on one question."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from packaging.requirements import Requirement

from jobs.doctor.checks import CheckResult, note, ok, problem
from jobs.memory import available_memory
from jobs.units import human_bytes
from pipeline.resources.cgroups import CGROUPS, num_cpus

if TYPE_CHECKING:
    from tango_core.types import VideoFrames
    from tango_core.video import DecoderName

PACKAGE = "tango-video"

# A driver, one worker per stage and Ray itself, with the embedded model.
_LITTLE_MEMORY = 4 * 2**30
_MAX_LISTED = 3
_NEEDED_EXTRAS = ("models", "pipeline", "jobs")


def python_version(package: str = PACKAGE) -> CheckResult:
    """Compare the Python version with the range that the package supports."""
    from packaging.specifiers import SpecifierSet

    found = platform.python_version()
    wanted = metadata.metadata(package)["Requires-Python"]
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        return problem(f"{found} is not {wanted}; install {package} into another Python")
    return ok(f"{found}, {platform.system()} {platform.machine()}")


def packages(package: str = PACKAGE) -> CheckResult:
    """Compare installed versions with the ranges that the package supports.

    Jobs need the extras `models`, `pipeline` and `jobs`. Others are optional: of them only what is
    installed is compared.
    """
    wrong, num_found = [], 0
    for text in metadata.requires(package) or ():
        wanted = Requirement(text)
        needed = _is_wanted(wanted, "", *_NEEDED_EXTRAS)
        if not needed and not _is_wanted(wanted, "torchcodec"):
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            if needed:
                wrong.append(f"{wanted.name} is missing (wanted: {wanted.specifier})")
            continue
        num_found += 1
        if not wanted.specifier.contains(found, prereleases=True):
            wrong.append(f"{wanted.name} {found} is not {wanted.specifier}")
    if not wrong:
        return ok(f"{package} {metadata.version(package)} and {num_found} others in their ranges")
    more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
    return problem(
        f"{'; '.join(wrong[:_MAX_LISTED])}{more}; reinstall with `pip install --upgrade "
        f"'{package}[all]'`, or `make setup` in a checkout"
    )


def _is_wanted(wanted: Requirement, *extras: str) -> bool:
    """Whether one of the extras brings this package on this platform; "" is what all bring."""
    return wanted.marker is None or any(wanted.marker.evaluate({"extra": it}) for it in extras)


def accelerators() -> CheckResult:
    """List the GPUs that torch can use, and check a product on each of them."""
    import torch

    build = f"torch {torch.__version__}"
    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None:
            return ok(f"{build}; no GPU: models run on the CPU")
        reason = "the driver does not answer" if torch.version.cuda else "this build has no CUDA"
        return note(
            f"{build}: there is an NVIDIA driver but torch sees no GPU ({reason}); compare "
            "`nvidia-smi` with the builds on pytorch.org"
        )
    devices = []
    for index in range(torch.cuda.device_count()):
        values = torch.ones(64, 64, device=f"cuda:{index}")
        if float((values @ values).sum()) != 64.0**3:
            return problem(
                f"cuda:{index} computes a wrong product; remove it from CUDA_VISIBLE_DEVICES"
            )
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        devices.append(f"{name} ({human_bytes(free)} of {human_bytes(total)} free)")
    half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16: set model.dtype"
    return ok(f"{build}; {len(devices)} GPU(s): {', '.join(devices)}; {half}")


def cpus(cgroups: Path = CGROUPS) -> CheckResult:
    """Compare the CPUs of the machine with those that this process may use."""
    total, ours = os.cpu_count() or 1, num_cpus(cgroups)
    if ours < total:
        return ok(f"{ours} of the machine's {total}: the limit of this container or process")
    return ok(f"{total}")


def memory() -> CheckResult:
    """Report the free memory of the machine or of its container."""
    total, available = available_memory()
    text = f"{human_bytes(available)} of {human_bytes(total)} free"
    if available < _LITTLE_MEMORY:
        return note(f"{text}: little for Ray with a worker per stage; `--set executor=local`")
    return ok(text)


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
