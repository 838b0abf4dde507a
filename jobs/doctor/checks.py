"""Checks of the machine, of stores and services, and of what a recipe names.

A check returns `ok` or `note`; what it raises is a problem. Every check runs in a child process and
imports its libraries when it is called.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import psutil

from jobs.extras import raise_if_missing
from jobs.units import human_bytes
from pipeline.resources.cgroups import CGROUPS, num_cpus, number
from pipeline.storage import Storage
from pipeline.storage.urls import Url, place
from tango_core import __version__

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.config.sections import BenchmarkSection
    from tango_core.video import DecoderName

Status = Literal["ok", "note", "problem"]

# A driver, one worker per stage and Ray itself, with the built-in model.
_LITTLE_MEMORY = 4 * 2**30
# The unpruned tokens of one clip of a 7B model take 45 MB; this is enough for 200 clips.
_LITTLE_DISK = 10**10


class CheckResult(NamedTuple):
    """Result of a check.

    Attributes:
        status: `"ok"`; `"note"`: no job fails because of it, but the user may want to know;
            `"problem"`: a job will fail, or will not do all that it is asked to.
        text: One line; for a problem it ends in what to do.
    """

    status: Status
    text: str


def ok(text: str) -> CheckResult:
    """A result with status `"ok"`."""
    return CheckResult("ok", text)


def note(text: str) -> CheckResult:
    """A result with status `"note"`."""
    return CheckResult("note", text)


def packages() -> CheckResult:
    """Check that the packages of the extras that jobs need are installed."""
    for extra in ("models", "pipeline", "jobs"):
        raise_if_missing(extra)
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return ok(f"tango-video {__version__} with all that it needs, {python}")


def accelerators() -> CheckResult:
    """List the GPUs that torch can use, and compute on the first one."""
    import torch

    build = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        torch.ones(64, device="cuda").sum().item()
        names = [torch.cuda.get_device_name(one) for one in range(torch.cuda.device_count())]
        half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16: set model.dtype"
        return ok(f"{build}; {', '.join(names)}; {half}")
    if shutil.which("nvidia-smi") is None:
        return ok(f"{build}; no GPU: models run on the CPU")
    return note(
        f"{build}: there is an NVIDIA driver but torch sees no GPU; compare `nvidia-smi` with the "
        "builds on pytorch.org"
    )


def machine(cgroups: Path = CGROUPS) -> CheckResult:
    """Report the CPUs and the free memory of the machine or of its container."""
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    limit, used = number(cgroups / "memory.max"), number(cgroups / "memory.current")
    if limit is not None and used is not None and limit < total:
        free, total = min(free, max(0, int(limit - used))), int(limit)
    text = (
        f"{num_cpus(cgroups)} of {os.cpu_count()} CPUs, {human_bytes(free)} of "
        f"{human_bytes(total)} memory free"
    )
    if free < _LITTLE_MEMORY:
        return note(f"{text}: little for Ray with a worker per stage; `--set executor=local`")
    return ok(text)


def video_decoder(name: DecoderName) -> CheckResult:
    """Report the decoder's version."""
    from tango_core.video import decoder_versions

    return ok(decoder_versions(name))


def embedded_model() -> CheckResult:
    """Ask the built-in model one question about a generated clip."""
    from tango_core.ask import VideoChat
    from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark

    with tempfile.TemporaryDirectory() as directory:
        (item,) = ShapesBenchmark(root=directory).items(1)
        question = item.questions[0]
        chat = VideoChat("tiny")
        answer = chat.ask(item.path, question.text, question.choices, method="tango", retention=0.5)
    text = f"{question.text} {answer.text.strip()!r}"
    if answer.choice != question.answer:
        return note(f"{text}: wrong, which can happen; `tango evaluate` measures how often")
    return ok(f"{text}: right")


def writable(location: str, setting: str) -> CheckResult:
    """Check that a directory can be written to; creates none. To a store, a small file is written.

    Args:
        location: Local path or URL.
        setting: The option or key that the user can change.
    """
    from jobs.run.locations import raise_if_unusable

    where = place(location)
    if isinstance(where, Url):
        storage, name = Storage.at(where), f".tango-doctor-{uuid.uuid4().hex}"
        storage.write(name, b"tango")
        storage.delete(name)
        return ok(f"{location} can be written to")
    raise_if_unusable(where, setting)
    path = where.absolute()
    free = shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
    text = f"{path}, {human_bytes(free)} free"
    return note(f"{text}: little for token caches") if free < _LITTLE_DISK else ok(text)


def tracking(uri: str) -> CheckResult:
    """Send one request to an MLflow server or store."""
    from jobs.tracking.runs import raise_if_unreachable

    answered = raise_if_unreachable(uri)
    return ok(f"{uri} {'answers' if answered else 'will be created by the first run'}")


def ray_pools(job: Job | None, address: str | None) -> CheckResult:
    """Check that the pools of a recipe fit the cluster, or this machine.

    Without an address no Ray is started: CPUs and GPUs of this machine are counted as Ray counts.

    Args:
        job: The recipe; `None` to check Ray alone.
        address: Address of a running cluster; `None` for a Ray that the job starts.
    """
    import ray
    import torch

    from jobs.run.build import executor_of
    from pipeline.clips import STAGES
    from pipeline.executors.cluster import connected
    from pipeline.resources.pools import doubts, preflight
    from tango_core.models.placement import resolve_device

    choice = None if job is None else executor_of(job, address)
    if job is not None and choice is not None and choice.executor != "ray":
        return ok(f"not used: one process on {resolve_device(job.model.device)}, {choice.reason}")
    nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
    if address is not None:
        with connected(address) as found:
            nodes = list(found)
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    where = address or "started here"
    about = f"{ray.__version__}, {where}: {cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} node(s)"
    if job is None or isinstance(job.pools, str):
        return ok(about)
    names = [stage.name for stage in STAGES]
    preflight(job.pools, nodes, names)
    if doubtful := list(doubts(job.model.device, job.pools, nodes, names)):
        return note(f"{about}; {'; '.join(doubtful)}")
    return ok(f"{about}; the recipe's pools fit")


def model(job: Job) -> CheckResult:
    """Load encoder and language model on the device `meta`: names and shapes of tensors must fit.

    Of a checkpoint only the small files and the headers of the weight files are read.
    """
    from jobs.fetch.hub import Repository
    from jobs.run.build import model_of
    from tango_core.models import load_encoder, load_language_model
    from tango_core.models.checkpoints.directory import raise_if_damaged
    from tango_core.models.onednn import advice

    if missing := _missing_checkpoints(job):
        for source, revision in missing:
            Repository(source, "model", revision or "main").raise_if_closed("config.json")
        commands = " and ".join(f"`tango model get {source}`" for source, _ in missing)
        return note(f"the job will download what {commands} would download now")
    spec = model_of(job)
    raise_if_damaged(spec.path)
    for load in (load_encoder, load_language_model):
        load(spec, device="meta")
    text = f"{spec.name}, {spec.frames.num_frames} frames, {spec.dtype}, {spec.path}"
    notes = [one for one in (spec.note, advice(spec)) if one]
    return note("; ".join([text, *notes])) if notes else ok(text)


def methods(job: Job, cache: str) -> CheckResult:
    """Build every method for the model; this checks its options, layers and signals."""
    from jobs.run.build import methods_of, model_of
    from pipeline.plan import plan_methods
    from tango_core.compressors import build_method

    for _, options in job.all_methods:
        build_method(**options)
    try:
        spec = None if _missing_checkpoints(job) else model_of(job)
    except (ValueError, OSError):  # the check of the model reports it
        spec = None
    if spec is None:
        return note(f"{len(job.all_methods)}; not checked with the model, which is missing")
    built, skipped = methods_of(job, spec)
    planned, _, caches = plan_methods(built, spec, cache)
    text = f"{len(planned)} with {len(caches)} token cache(s)"
    if skipped:
        names = ", ".join(entry.name for entry in skipped)
        return note(f"{text}; skipped, because the model has too few layers: {names}")
    return ok(text)


def benchmark(section: BenchmarkSection, video_cache: str = "~/.cache/tango-video") -> CheckResult:
    """Open a benchmark's annotations; its video files are not checked."""
    from jobs.run.build import open_benchmark

    opened, mirror = open_benchmark(section, video_cache)
    if opened.generated_in is not None:
        result = writable(str(opened.generated_in), "benchmark.root")
        return CheckResult(result.status, f"{section.name}, generated in {result.text}")
    if mirror is not None:
        return ok(f"{section.name} in {section.root}, {len(mirror.objects)} objects")
    split = "" if section.split == "test" else f" --split {section.split}"
    return ok(
        f"{section.name} in {section.root}; check every file with "
        f"`tango data check {section.name} {section.root}{split}`"
    )


def _missing_checkpoints(job: Job) -> list[tuple[str, str | None]]:
    """Hub checkpoints of the recipe that are not on this machine, each with its revision."""
    from tango_core.models import model_entry
    from tango_core.models.checkpoints.directory import is_here

    section = job.model
    path = section.path or model_entry(section.name).path
    sources = ((path, section.revision), (section.saliency_from, None))
    return [(name, commit) for name, commit in sources if name and not is_here(name, commit)]
