"""`tango doctor`: checks of the machine, of stores and services, and of what a recipe names.

A check returns `ok` or `note`; what it raises is a problem. Every check runs in a child process and
imports its libraries when it is called: a library that is missing, hangs or crashes fails its own
check and no other. A new check goes into the list of `checks_for`.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import psutil
from rich.console import Console
from rich.text import Text

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError, load_jobs
from jobs.extras import how_to_install, raise_if_missing
from jobs.run.locations import Locations, raise_if_unusable
from jobs.tracking.runs import default_tracking_uri, raise_if_unreachable
from jobs.units import human_bytes
from pipeline.resources.pools import CGROUPS, num_cpus, number
from pipeline.runtime.child import Child
from pipeline.storage import Storage
from pipeline.storage.urls import Url, place
from tango_core import __version__

if TYPE_CHECKING:
    from jobs.config.sections import BenchmarkSection
    from tango_core.video import DecoderName

Status = Literal["ok", "note", "problem"]
_STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}

# A driver, one worker per stage and Ray itself, with the built-in model.
_LITTLE_MEMORY = 4 * 2**30


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
    if shutil.which("nvidia-smi"):
        return note(f"{build} sees no GPU, although there is an NVIDIA driver; see pytorch.org")
    return ok(f"{build}; no GPU: models run on the CPU")


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
    verdict = "right" if answer.choice == question.answer else "wrong, which can happen"
    return ok(f"{question.text} {answer.text.strip()!r}: {verdict}")


def writable(location: str, setting: str) -> CheckResult:
    """Check that a directory can be written to; creates none. To a store, a small file is written.

    Args:
        location: Local path or URL.
        setting: The option or key that the user can change.
    """
    where = place(location)
    if isinstance(where, Url):
        storage, name = Storage.at(where), f".tango-doctor-{uuid.uuid4().hex}"
        storage.write(name, b"tango")
        storage.delete(name)
        return ok(f"{location} can be written to")
    raise_if_unusable(where, setting)
    path = where.absolute()
    free = shutil.disk_usage(next(one for one in (path, *path.parents) if one.exists())).free
    return ok(f"{path}, {human_bytes(free)} free")


def tracking(uri: str) -> CheckResult:
    """Send one request to an MLflow server or store."""
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

    choice = executor_of(job, address) if job else None
    if job and choice and choice.executor != "ray":
        return ok(f"not used: one process on {resolve_device(job.model.device)}, {choice.reason}")
    nodes = [{"CPU": float(num_cpus()), "GPU": float(torch.cuda.device_count())}]
    if address is not None:
        with connected(address) as found:
            nodes = list(found)
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    where = address or "started here"
    about = f"{ray.__version__}, {where}: {cpus:g} CPUs and {gpus:g} GPUs on {len(nodes)} node(s)"
    if not job or isinstance(job.pools, str):
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
    from tango_core.models.kernels import advice

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
        if _missing_checkpoints(job):
            raise FileNotFoundError
        spec = model_of(job)
    except (ValueError, OSError):  # the check of the model reports it
        return note(f"{len(job.all_methods)}; not checked with the model, which is missing")
    built, skipped = methods_of(job, spec)
    planned, _, caches = plan_methods(built, spec, cache)
    text = f"{len(planned)} with {len(caches)} token cache(s)"
    names = ", ".join(entry.name for entry in skipped)
    return note(f"{text}; the model has too few layers for {names}") if skipped else ok(text)


def benchmark(section: BenchmarkSection, video_cache: str = "~/.cache/tango-video") -> CheckResult:
    """Open a benchmark's annotations; its video files are not checked."""
    from jobs.run.build import open_benchmark

    opened, mirror = open_benchmark(section, video_cache)
    if opened.generated_in is not None:
        return ok(f"{section.name}: {writable(str(opened.generated_in), 'benchmark.root').text}")
    if mirror is not None:
        return ok(f"{section.name} in {section.root}, {len(mirror.objects)} objects")
    command = f"tango data check {section.name} {section.root} --split {section.split}"
    return ok(f"{section.name} in {section.root}; check every file with `{command}`")


def _missing_checkpoints(job: Job) -> list[tuple[str, str | None]]:
    """Hub checkpoints of the recipe that are not on this machine, each with its revision."""
    from tango_core.models import model_entry
    from tango_core.models.checkpoints.directory import is_here

    section = job.model
    path = section.path or model_entry(section.name).path
    sources = ((path, section.revision), (section.saliency_from, None))
    return [(name, commit) for name, commit in sources if name and not is_here(name, commit)]


class Check(NamedTuple):
    """A function to run and the name of what it checks.

    Attributes:
        subject: One or two words, printed in front of the result.
        function: Function of an importable module.
        args: Its arguments, picklable.
        timeout_s: Seconds after which the check is stopped.
    """

    subject: str
    function: Callable[..., CheckResult]
    args: tuple[Any, ...] = ()
    timeout_s: float = 60.0


def doctor(recipe: Path | None, changes: Sequence[str], where: Locations, console: Console) -> int:
    """Check everything that a job needs and print one line per check.

    Args:
        recipe: Also check what this recipe names; `None` to check the machine alone.
        changes: `--set` overrides of the recipe.
        where: Where the job would read and write.
        console: Where the lines are printed.

    Returns:
        Exit code: 1 if there is any problem.

    Raises:
        RecipeError: If there are changes but no recipe.
    """
    if changes and recipe is None:
        raise RecipeError(f"--set {changes[0]} changes a recipe; name one: tango doctor RECIPE")
    job: Job | None = None
    counts = Counter[str]()
    results: list[tuple[str, CheckResult]] = []
    if recipe is not None:
        try:
            job = load_jobs(recipe, changes)[0]
            text = f"{recipe}: {len(job.all_methods)} method(s), {job.mode} mode"
            results = [("recipe", ok(text))]
        except (ValueError, OSError) as error:  # only the machine is checked
            results = [("recipe", CheckResult("problem", str(error)))]
    for subject, (status, text) in chain(results, run_checks(checks_for(job, where))):
        counts[status] += 1
        line = Text.assemble((f"{status:<8}", _STYLES[status]), f"{subject:<15}")
        console.print(line + " ".join(text.split()), highlight=False, soft_wrap=True)
    console.print(f"{counts['problem']} problem(s), {counts['note']} note(s)", highlight=False)
    return exit_codes.of(not counts["problem"])


def checks_for(job: Job | None, where: Locations) -> list[Check]:
    """All checks, those of the machine before those of the recipe."""
    decoder = job.decode.decoder if job else "auto"
    uri = where.tracking_uri or default_tracking_uri(where.output)
    cache = "--cache" if where.cache else "--output or --cache"
    found = [
        Check("packages", packages),
        Check("accelerators", accelerators),
        Check("machine", machine),
        Check("output", writable, (str(where.output), "--output")),
        Check("cache", writable, (where.cache_root, cache)),
        Check("temporary", writable, (tempfile.gettempdir(), "TMPDIR")),
        Check("MLflow", tracking, (uri,)),
        Check("decoder", video_decoder, (decoder,)),
        Check("built-in model", embedded_model),
    ]
    if job is not None:
        videos = job.decode.video_cache
        found += [
            Check("model", model, (job,)),
            Check("methods", methods, (job, where.cache_root)),
            *(Check("benchmark", benchmark, (one, videos)) for one in job.all_benchmarks),
        ]
    return [*found, Check("Ray", ray_pools, (job, where.address))]


def run_checks(wanted: Iterable[Check]) -> Generator[tuple[str, CheckResult]]:
    """Run checks one by one in a child process; yields (subject, result), and never raises.

    A check that raises, takes too long or ends its process is a problem with that as its text, and
    the next check starts in a new process.
    """
    child = Child()
    try:
        for subject, function, args, timeout_s in wanted:
            call = (_without_log, function, args)
            try:
                result = child.call(*call, timeout_s=timeout_s, about=subject, what="check")
            # Any error is what the user wants to know, and the remaining checks must still run.
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if isinstance(error, ModuleNotFoundError):
                    text = how_to_install(error) or text
                elif isinstance(error, (ValueError, OSError)):
                    text = str(error) or text
                result = CheckResult("problem", text)
            yield subject, result
    finally:
        child.close()


def _without_log(function: Callable[..., CheckResult], args: tuple[Any, ...]) -> CheckResult:
    """Run a check in the child; log messages of libraries would mix with the results."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return function(*args)
