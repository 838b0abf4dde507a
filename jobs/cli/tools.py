"""The commands `tango ask`, `list`, `serve`, `train-tiny`, `check-method`, `data` and `model`."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from jobs import exit_codes
from jobs.cli import options as shared
from jobs.cli.completion import benchmark_names, method_names, model_names
from jobs.cli.options import Details, Positive, app, command
from tango_core.errors import InputError

if TYPE_CHECKING:
    from tango_core.ask import VideoAnswer

data = typer.Typer(no_args_is_help=True, help="Download and check the files of a benchmark.")
model = typer.Typer(no_args_is_help=True, help="Download checkpoints.")

Benchmark = Annotated[str, Details(help="Name of a benchmark.", autocompletion=benchmark_names)]
Jobs = Annotated[int, Details(min=1, max=32, help="Number of parallel downloads.")]
Yes = Annotated[bool, Details(help="Do not ask for confirmation.")]
DryRun = Annotated[bool, Details(help="List what would be downloaded.")]
Quiet = Annotated[bool, Details(help="Show no progress bar and no notes.")]

# Stage of `VideoAnswer.latency_ms` -> displayed name.
_STAGES = {
    **{"decode_video": "read", "vision": "vision", "compress": "compress"},
    **{"ttft": "first token", "decode": "rest"},
}


@command(app)
def ask(
    video: shared.Location,
    question: str,
    *,
    choices: list[str] = [],
    model: Annotated[str, Details(autocompletion=model_names)] = "tiny",
    path: shared.OptionalLocation = None,
    method: Annotated[str, Details(autocompletion=method_names)] = "tango",
    retention: float | None = None,
    option: list[str] = [],
    clip: Annotated[str | None, Details(metavar="START-END")] = None,
    num_frames: int | None = None,
    saliency_from: shared.OptionalLocation = None,
    sinks: shared.OptionalLocation = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    max_new_tokens: Annotated[int | None, Details(min=1, max=10**12)] = None,
) -> int:
    """Ask one question about one video.

    Args:
        video: Video file, directory of frames, or URL.
        question: The question.
        choices: Answer option; repeat it, or give several as "a dog|a cat".
        model: Name of a model, or a checkpoint: directory or hub id.
        path: Checkpoint for the named model.  [default: its own]
        method: Pruning method.
        retention: Share of the visual tokens to keep.  [default: 0.1]
        option: Further option of the method: --option alpha=2.
        clip: Part of the video, in seconds.
        num_frames: Number of frames.  [default: the model's]
        saliency_from: SigLIP checkpoint with a pooling head.
        sinks: Sinks file written by `tango analyze sinks`.
        device: Device.
        max_new_tokens: Maximum length of the reply in tokens.
    """
    from jobs.config.overrides import parse_setting
    from jobs.config.sections import DecodeSection
    from pipeline.storage.copies import VideoCache
    from pipeline.storage.urls import is_url
    from tango_core.ask import VideoChat

    of_model: dict[str, Any] = {
        "num_frames": num_frames,
        "saliency_from": saliency_from,
        "sinks": sinks,
        "device": device,
    }
    chat = VideoChat(model, path, **{k: v for k, v in of_model.items() if v is not None})
    given: dict[str, Any] = {
        "method": method,
        "retention": retention,
        "clip": None if clip is None else parse_bounds(clip),
        "max_new_tokens": max_new_tokens,
        **{keys[0]: value for keys, value, _ in (parse_setting("--option", o) for o in option)},
    }
    answers = [one for each in choices for one in each.split("|")]
    cache = DecodeSection()
    videos = VideoCache(cache.video_cache, cache.video_cache_gib)
    with videos.fetched(video, "") if is_url(video) else nullcontext(video) as local:
        answer = chat.ask(local, question, answers, **given)
    say = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    say(_reply(answer))
    say(_cost(answer), style="dim")
    for warning in filter(None, (*answer.warnings, chat.spec.note)):
        say(f"note: {warning}", style="dim")
    return exit_codes.of(answer.status != "unparsed")


def _reply(answer: VideoAnswer) -> str:
    """The chosen option with its letter, or the text of the reply."""
    if answer.choice is not None:
        return f"{answer.letter}. {answer.choices[answer.choice]}"
    if answer.status == "unparsed":
        return f"The reply does not name an option: {answer.text!r}"
    return answer.text or "(The reply is empty.)"


def _cost(answer: VideoAnswer) -> str:
    """Method, tokens and times in one line."""
    from jobs.report.formatting import milliseconds

    retention = "" if answer.retention is None else f" r={answer.retention:g}"
    share = answer.tokens_kept / answer.tokens_total
    ms = answer.latency_ms
    times = [f"{name} {milliseconds(ms[one])}" for one, name in _STAGES.items() if one in ms]
    return (
        f"{answer.method}{retention}: {answer.tokens_kept} of {answer.tokens_total} visual tokens "
        f"({share:.1%}); ms: {', '.join(times)}"
    )


@command(app, "list")
def list_(
    kind: Annotated[Literal["methods", "models", "benchmarks", "recipes"], Details(metavar="KIND")],
    *,
    json: shared.Json = False,
) -> None:
    """List methods, models, benchmarks or recipes.

    Args:
        kind: methods, models, benchmarks or recipes.
    """
    from json import dumps

    from jobs.catalogue import entries, table

    if json:
        print(dumps([one._asdict() for one in entries(kind)], indent=2))
    else:
        print(table(kind, shared.width()))


@command(app)
def serve(
    recipe: Path,
    options: Annotated[list[str], Details(metavar="[-- OPTION...]")] = [],
    *,
    cache: Annotated[
        str, Details(help="Directory or URL of the token caches.", callback=shared.expanded)
    ] = shared.CACHE,
    set_: shared.Set = [],
    dry_run: bool = False,
) -> int:
    """Serve a recipe's token sets over HTTP, with vLLM.

    Args:
        recipe: YAML recipe; its model answers, its methods are served.
        options: Options of `vllm serve`, e.g. -- --port 8000.
        dry_run: Print the command, and do not run it.
    """
    from jobs.config.recipe import load_job
    from jobs.serve.command import serve

    return serve(load_job(recipe, set_), cache, options, dry_run=dry_run)


@command(app)
def train_tiny(
    *,
    output: Path = Path("tiny"),
    seed: shared.Number = 0,
    minutes: float = 90.0,
    resume: bool = False,
) -> None:
    """Train the built-in model from scratch.

    Args:
        output: Directory that receives the model.
        seed: Random seed.
        minutes: Training time on two free cores; scales every stage.
        resume: Continue from the checkpoints in OUTPUT.
    """
    from jobs.run.locations import raise_if_unusable

    raise_if_unusable(output)
    try:
        from jobs.training.command import train_tiny
    except ModuleNotFoundError as error:
        if error.name != "jobs.training":
            raise
        raise InputError(
            "train-tiny is not in the installed package; run it in a checkout of the repository"
        ) from None

    train_tiny(output, seed=seed, minutes=minutes, resume=resume)
    print(f"model: {output}; measure it with `tango evaluate` and --set model.path={output}")


@command(app)
def check_method(
    name: Annotated[str, Details(autocompletion=method_names)], *, set_: list[str] = []
) -> int:
    """Check a method against the contract of all methods.

    Args:
        name: Your own method, my_module:MyMethod, or a built-in one.
        set_: Option of the method: --set retention=0.2.
    """
    from jobs.config.overrides import with_overrides
    from tango_core.compressors.contract import check_method

    num_failed = 0
    for result in check_method(name, with_overrides({}, set_)):
        num_failed += result.failure is not None
        failed = f": {result.failure}" if result.failure else ""
        print(f"{'FAILED' if failed else 'ok':<6}  {result.promise}{failed}", flush=True)
    return exit_codes.of(not num_failed)


@command(data, "check")
def data_check(
    benchmark: Benchmark,
    root: Path | None = None,
    *,
    split: str = "test",
    output: Path | None = None,
    jobs: Positive = 4,
) -> int:
    """Check every row and every file before a job needs them.

    Args:
        root: Directory of its files.
        split: Split of the benchmark.
        output: Write every finding to a .csv file.
        jobs: Number of files checked in parallel.
    """
    from jobs.data_check.check import data_check

    return data_check(benchmark, root, output, jobs, Console(), split)


@command(data, "get")
def data_get(
    benchmark: Benchmark,
    *,
    root: Path,
    only: list[str] = [],
    repository: str | None = None,
    revision: str | None = None,
    jobs: Jobs = 4,
    keep_archives: bool = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Download a benchmark from the hub, unpack and check it.

    Args:
        root: Target directory, to be used as benchmark.root.
        only: Only this part: annotations, videos or subtitles; may be repeated.
        repository: Alternative repository.  [default: the usual one]
        revision: Branch, tag or commit.  [default: main]
        keep_archives: Keep archives after unpacking them.
    """
    from jobs.fetch.data import data_get

    return data_get(
        benchmark,
        root,
        Console(),
        only=only,
        repository=repository,
        revision=revision,
        keep=keep_archives,
        **_how(jobs, yes, dry_run, quiet),
    )


@command(model, "get")
def model_get(
    name: Annotated[str, Details(autocompletion=model_names)],
    *,
    dir_: Path | None = None,
    half: Literal["encoder", "language"] | None = None,
    revision: str = "main",
    jobs: Jobs = 4,
    yes: Yes = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Download a checkpoint from the hub; continues if interrupted.

    Args:
        name: Name of a model, or a hub id.
        dir_: Directory for its files.  [default: the hub's cache]
        half: Only the files of this half of the model.
        revision: Branch, tag or commit.
    """
    from jobs.fetch.model import model_get

    how = _how(jobs, yes, dry_run, quiet)
    return model_get(name, Console(), folder=dir_, half=half, revision=revision, **how)


def _how(jobs: int, yes: bool, dry_run: bool, quiet: bool) -> Any:
    if quiet:
        logging.getLogger().setLevel(logging.WARNING)
    return {"jobs": jobs, "yes": yes, "dry_run": dry_run, "quiet": quiet}


def parse_bounds(text: str) -> tuple[float, float]:
    """Parse the value of `--clip`: `"12.5-30"`, in seconds.

    Raises:
        InputError: If it is not of that form.
    """
    start, dash, end = text.partition("-")
    try:
        bounds = float(start), float(end)
    except ValueError:
        bounds = (0.0, -1.0)
    if not dash or not 0 <= bounds[0] <= bounds[1]:
        raise InputError(f"--clip {text!r} is not START-END in seconds, e.g. 12.5-30")
    return bounds
