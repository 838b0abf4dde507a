"""Checks of the machine, of stores and services, and of what a recipe names.

Every check runs in a child process and imports its libraries when it is called.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import uuid
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import psutil
from packaging.requirements import Requirement

from jobs.units import human_bytes
from pipeline.resources.cgroups import CGROUPS, num_cpus, number
from pipeline.storage import Storage

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.config.sections import BenchmarkSection
    from tango_core.video import DecoderName

Status = Literal["ok", "note", "problem"]

PACKAGE = "tango-video"
_NEEDED_EXTRAS = ("models", "pipeline", "jobs")
_MAX_LISTED = 3
# A driver, one worker per stage and Ray itself, with the embedded model.
_LITTLE_MEMORY = 4 * 2**30
# All tokens of one clip of a 7B model take 45 MB: this is room for 20 and for 200 clips.
_TOO_LITTLE, _LITTLE = 10**9, 10**10
# Ray moves no objects to a disk that is fuller than this.
_FULL_FOR_RAY = 0.95


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


def problem(text: str) -> CheckResult:
    """A result with status `"problem"`."""
    return CheckResult("problem", text)


def packages(package: str = PACKAGE) -> CheckResult:
    """Compare Python and the installed packages with the ranges that the package supports.

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
        return ok(
            f"{package} {metadata.version(package)} and {num_found} others in their ranges, with "
            f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        )
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


def available_memory(cgroups: Path = CGROUPS) -> tuple[int, int]:
    """(total, available) bytes; of the container if that has a limit."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = number(cgroups / limit_file), number(cgroups / used_file)
        if limit is not None and used is not None and limit < total:
            return int(limit), min(available, max(0, int(limit - used)))
    return total, available


def memory() -> CheckResult:
    """Report the free memory of the machine or of its container."""
    total, available = available_memory()
    text = f"{human_bytes(available)} of {human_bytes(total)} free"
    if available < _LITTLE_MEMORY:
        return note(f"{text}: little for Ray with a worker per stage; `--set executor=local`")
    return ok(text)


def video_decoder(name: DecoderName, chosen: str = "auto") -> CheckResult:
    """Report a decoder's version, or that it is not installed.

    Args:
        name: The decoder.
        chosen: The recipe's `decode.decoder`.
    """
    from tango_core.video import DecoderUnavailableError, decoder_versions

    try:
        return ok(decoder_versions(name))
    except DecoderUnavailableError as error:
        if name == chosen:
            return problem(str(error))
        if find_spec(name) is None:
            return ok(f"not installed; only decode.decoder: {name} needs it")
        return note(str(error))


def embedded_model() -> CheckResult:
    """Ask the embedded model one question about a generated clip."""
    from tango_core.ask import VideoChat
    from tango_core.benchmarks.shapes.benchmark import ShapesBenchmark

    with tempfile.TemporaryDirectory() as directory:
        (item,) = ShapesBenchmark(root=directory).items(1)
        question = item.questions[0]
        chat = VideoChat("tiny")
        answer = chat.ask(item.path, question.text, question.choices, method="tango", retention=0.5)
    text = f"{question.text} {answer.text.strip()!r}"
    if chat.spec.note:
        return note(f"{text}; {chat.spec.note}")
    if answer.choice != question.answer:
        return note(f"{text}: wrong, which can happen; `tango evaluate` measures how often")
    return ok(f"{text}: right")


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


def _write_and_remove(storage: Storage) -> None:
    name = f".tango-doctor-{uuid.uuid4().hex}"
    storage.write(name, b"tango")
    try:
        if storage.read(name) != b"tango":
            raise OSError(f"{storage.root} does not give back what was written")
    finally:
        storage.delete(name)


def temporary() -> CheckResult:
    """Check `writable` for the directory of Ray's logs and of objects that do not fit in memory."""
    directory = tempfile.gettempdir()
    result = writable(directory, "directory with the environment variable TMPDIR")
    usage = shutil.disk_usage(directory)
    share = 1 - usage.free / usage.total
    if result.status != "problem" and share > _FULL_FOR_RAY:
        return note(f"{directory} is {share:.1%} full: Ray moves no objects there above 95 %")
    return result


def tracking(uri: str) -> CheckResult:
    """Send one request to an MLflow server or store."""
    from jobs.tracking.runs import raise_if_unreachable

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

    from jobs.run.build import executor_of
    from pipeline.clips import STAGES
    from pipeline.executors.cluster import connected
    from pipeline.resources.devices import doubts
    from pipeline.resources.pools import preflight
    from tango_core.models.placement import resolve_device

    choice = None if job is None else executor_of(job, address)
    if job is not None and choice is not None and choice.executor != "ray":
        if address is not None:
            return note(
                f"--address {address} is not used: set executor to ray and mode to throughput"
            )
        return ok(f"not used: one process on the {str(resolve_device(job.model.device)).upper()}")
    if address is None:
        nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
    else:
        with connected(address) as found:
            nodes = list(found)
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    resources = f"{cpus:g} CPUs and {gpus:g} GPUs"
    about = f"{ray.__version__}, started here with {resources}"
    if address is not None:
        about = f"{ray.__version__}, {address} has {resources} on {len(nodes)} node(s)"
    if job is None:
        return ok(about)
    if isinstance(job.pools, str):
        return ok(f"{about}; pools: auto shares them out")
    names = [stage.name for stage in STAGES]
    preflight(job.pools, nodes, names)
    if doubtful := list(doubts(job.model.device, job.pools, nodes, names)):
        return note(f"{about}; {'; '.join(doubtful)}")
    return ok(f"{about}; the recipe's pools fit")


def model(job: Job) -> CheckResult:
    """Load encoder and language model on the device `meta`: names and shapes of tensors must fit.

    Of a checkpoint only the small files and the headers of the weight files are read.
    """
    from jobs.run.build import model_of
    from tango_core.models import load_encoder, load_language_model
    from tango_core.models.checkpoints.directory import Checkpoint, raise_if_damaged
    from tango_core.models.onednn import advice

    if missing := _missing_checkpoints(job):
        return _download_result(missing)
    spec = model_of(job)
    raise_if_damaged(spec.path)
    for load in (load_encoder, load_language_model):
        load(spec, device="meta")
    text = f"{spec.name}, {spec.frames.num_frames} frames, {spec.dtype}, {spec.path}"
    if Path(spec.path).is_dir():
        files = Checkpoint(spec.path, Path(spec.path), None).weight_files()
        size = sum((Path(spec.path) / name).stat().st_size for name in files)
        text += f": {human_bytes(size)}, complete"
    notes = [one for one in (spec.note, advice(spec)) if one]
    return note("; ".join([text, *notes])) if notes else ok(text)


def methods(job: Job, cache: str) -> CheckResult:
    """Build every method for the model; this checks its options, layers and signals."""
    from jobs.config.methods import raise_if_wrong_methods
    from jobs.run.build import methods_of, model_of
    from pipeline.plan import plan_methods
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
    return [(name, commit) for name, commit in sources if name and not is_here(name, commit)]


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
