"""Checks of output directories, MLflow, Ray and the models and data of a recipe."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.doctor.checks import CheckResult, note, ok, problem
from jobs.units import human_bytes
from pipeline.resources.cgroups import num_cpus
from pipeline.storage import Storage

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.config.sections import BenchmarkSection

# All tokens of one clip of a 7B model take 45 MB: this is room for 20 and for 200 clips.
_TOO_LITTLE, _LITTLE = 10**9, 10**10
# Ray moves no objects to a disk that is fuller than this.
_FULL_FOR_RAY = 0.95


def writable(location: str, setting: str) -> CheckResult:
    """Write a small file, read it back, delete it, and report the free space.

    No directory is created: if the location does not exist yet, the nearest existing parent is
    checked.

    Args:
        location: Local path or URL.
        setting: The option or key that the user can change.
    """
    if "://" in location and not location.startswith("file://"):
        _write_and_remove(Storage.at(location))
        return ok(f"{location} can be written to")
    directory = Path(Storage.at(location).root)
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not existing.is_dir():
        return problem(f"{existing} is not a directory; choose another {setting}")
    try:
        _write_and_remove(Storage.at(str(existing)))
    except OSError as error:
        return problem(
            f"{existing} cannot be written to ({error.strerror or error}); choose another {setting}"
        )
    about = f"{directory}, {'' if directory == existing else 'will be created, '}"
    free = shutil.disk_usage(existing).free
    if free < _TOO_LITTLE:
        return problem(
            f"{about}only {human_bytes(free)} free; free some space or choose another {setting}"
        )
    text = f"{about}{human_bytes(free)} free"
    return note(f"{text}: little for token caches") if free < _LITTLE else ok(text)


def temporary() -> CheckResult:
    """Check `writable` for the directory of Ray's logs and of objects that do not fit in memory."""
    directory = tempfile.gettempdir()
    result = writable(directory, "directory with the environment variable TMPDIR")
    usage = shutil.disk_usage(directory)
    share = 1 - usage.free / usage.total
    if result.status != "problem" and share > _FULL_FOR_RAY:
        return note(f"{directory} is {share:.1%} full: Ray moves no objects there above 95 %")
    return result


def _write_and_remove(storage: Storage) -> None:
    """Write, read and delete a small file; raises what the file system raises."""
    name = f".tango-doctor-{uuid.uuid4().hex}"
    storage.write(name, b"tango")
    try:
        if storage.read(name) != b"tango":
            raise OSError(f"{storage.root} does not give back what was written")
    finally:
        storage.delete(name)


def tracking(uri: str) -> CheckResult:
    """Send one request to an MLflow server or store."""
    from jobs.tracking.server import raise_if_unreachable

    try:
        answered = raise_if_unreachable(uri)
    except OSError as error:
        return problem(f"{uri}: {error}; runs can be logged later with `tango log-run`")
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

    from jobs.run.placement import executor_of
    from pipeline.executors.cluster import connected
    from tango_core.models.placement import resolve_device

    choice = None if job is None else executor_of(job, address)
    if job is not None and choice is not None and choice.executor != "ray":
        device = resolve_device(job.model.device)
        if address is not None:
            return note(
                f"--address {address} is not used: set executor to ray and mode to throughput"
            )
        return ok(f"not used: one process on the {str(device).upper()}")
    if address is None:
        nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
        return _fit(job, nodes, f"{ray.__version__}, started here with {_resources(nodes)}")
    with connected(address) as nodes:
        about = f"{ray.__version__}, {address} has {_resources(nodes)} on {len(nodes)} node(s)"
        return _fit(job, nodes, about)


def _fit(job: Job | None, nodes: list[dict[str, float]], about: str) -> CheckResult:
    """Check the pools as a job does when it starts."""
    from pipeline.clips import STAGES
    from pipeline.resources.devices import doubts
    from pipeline.resources.pools import preflight

    if job is None:
        return ok(about)
    if isinstance(job.pools, str):
        return ok(f"{about}; pools: auto shares them out")
    names = [stage.name for stage in STAGES]
    preflight(job.pools, nodes, names)
    if doubtful := list(doubts(job.model.device, job.pools, nodes, names)):
        return note(f"{about}; {'; '.join(doubtful)}")
    return ok(f"{about}; the recipe's pools fit")


def _resources(nodes: list[dict[str, float]]) -> str:
    """CPUs and GPUs of all nodes together."""
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    return f"{cpus:g} CPUs and {gpus:g} GPUs"


def model(job: Job) -> CheckResult:
    """Load encoder and language model on the device `meta`: names and shapes of tensors must fit.

    Of a checkpoint only the small files and the headers of the weight files are read.
    """
    from tango_core.models import load_encoder, load_language_model
    from tango_core.models.checkpoints.directory import Checkpoint, raise_if_damaged

    missing = _missing_checkpoints(job)
    if missing:
        return _download_result(missing)
    from jobs.run.build import model_of

    spec = model_of(job)
    raise_if_damaged(spec.path)
    for load in (load_encoder, load_language_model):
        load(spec, device="meta")
    text = f"{spec.name}, {spec.frames.num_frames} frames, {spec.dtype}, {spec.path}"
    if Path(spec.path).is_dir():
        files = Checkpoint(spec.path, Path(spec.path), None).weight_files()
        size = sum((Path(spec.path) / name).stat().st_size for name in files)
        text += f": {human_bytes(size)}, complete"
    return note(f"{text}; {spec.note}") if spec.note else ok(text)


def methods(job: Job, cache: str) -> CheckResult:
    """Build every method for the model; this checks its options, layers and signals."""
    from jobs.config.methods import raise_if_wrong_methods
    from jobs.run.build import methods_of, model_of
    from pipeline.methods import plan_methods
    from tango_core.video import decoder_versions

    raise_if_wrong_methods(job.all_methods)
    unknown = note(f"{len(job.all_methods)}; not checked: model or decoder is missing")
    try:
        if _missing_checkpoints(job):
            return unknown
        spec = model_of(job)
        decoder_versions(job.decode.decoder)
    except (ValueError, OSError):  # the check of the model or the decoder reports it
        return unknown
    built, skipped = methods_of(job, spec)
    planned, _, caches = plan_methods(built, spec, cache)
    text = f"{len(planned)} with {len(caches)} token cache(s)"
    if skipped:
        names = ", ".join(entry.name for entry in skipped)
        return note(f"{text}; skipped, because the model has too few layers: {names}")
    return ok(text)


def benchmark(section: BenchmarkSection, video_cache: str = "~/.cache/tango-video") -> CheckResult:
    """Open a benchmark's annotations; its video files are not checked."""
    from jobs.run.build import benchmark_of, mirror_of

    mirror = mirror_of(section, video_cache)
    opened = benchmark_of(section, mirror)
    if mirror is not None:
        return ok(f"{section.name} in {section.root}, {len(mirror.objects)} objects")
    if opened.generated_in is not None:
        result = writable(str(opened.generated_in), "benchmark.root")
        return CheckResult(result.status, f"{section.name}, generated in {result.text}")
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
    sources = (
        (section.path or model_entry(section.name).path, section.revision),
        (section.saliency_from, None),
    )
    return [
        (source, revision)
        for source, revision in sources
        if source and not is_here(source, revision)
    ]


def _download_result(missing: list[tuple[str, str | None]]) -> CheckResult:
    """A note, or a problem if the hub will not give them, or `HF_HUB_OFFLINE` forbids to ask it."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    names = " and ".join(source for source, _ in missing)
    commands = " and ".join(f"`tango model get {source}`" for source, _ in missing)
    if HF_HUB_OFFLINE:
        return problem(
            f"{names} is not on this machine and HF_HUB_OFFLINE="
            f"{os.environ.get('HF_HUB_OFFLINE', '1')} forbids the download; run {commands} where "
            "there is a network, and set model.path to the directory"
        )
    from jobs.fetch.hub import Repository

    for source, revision in missing:
        Repository(source, "model", revision or "main").raise_if_closed("config.json")
    return note(f"{names} will be downloaded, and the hub gives it; {commands} does so now")
