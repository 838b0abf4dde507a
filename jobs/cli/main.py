"""The console script `tango`: reads the command line, runs it, and turns mistakes into one line.

Heavy imports happen inside the commands, after the checks of recipe and paths: help is shown and a
mistake is reported at once.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from jobs import exit_codes
from jobs.cli import analyze as cli_analyze
from jobs.cli import cache as cli_cache
from jobs.cli import completion as cli_completion
from jobs.cli import explain as cli_explain
from jobs.cli import fetch as cli_fetch
from jobs.cli import methods as cli_methods
from jobs.cli import results as cli_results
from jobs.cli import runs as cli_runs
from jobs.cli import submit as cli_submit
from jobs.cli import tools as cli_tools
from jobs.cli import view as cli_view
from jobs.cli.dry_run import DryRunOptions, Only, Price, Probe
from jobs.cli.options import (
    RUNS,
    Address,
    Cache,
    Continue,
    Controls,
    Features,
    HashContent,
    Limit,
    Mode,
    Output,
    Recipe,
    Resume,
    Set,
    Shard,
    Steal,
    Tracking,
    VideoCacheGib,
    expanded,
)
from jobs.cli.output import Json, Quiet, announce, console_of, display_of
from jobs.cli.path_checks import check_jobs
from jobs.cli.usage_errors import run_app
from jobs.run.last_words import how_to_go_on, last_words
from pipeline.background import LastingThread
from pipeline.errors import StoreError, WorkerError
from pipeline.redaction import RedactingFilter, redacted
from pipeline.stopping import handled, leave

if TYPE_CHECKING:
    from jobs.config.recipe import Job
    from jobs.run.locations import Locations
    from pipeline.executors.early import EarlyRay

app = typer.Typer(
    name="tango",
    help="Training-free video-token pruning: encode every clip once, compare every method.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    """Print the version and leave, before any command is looked for."""
    if wanted:
        from tango_core import __version__

        print(f"tango-video {__version__}")
        _exit(exit_codes.OK)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Hold the options of `tango` itself."""


def _measuring(
    run: Callable[[Path, list[str], Locations, bool, bool, DryRunOptions], int],
) -> Callable[..., None]:
    """A command with the options of every job that measures.

    Args:
        run: Recipe, changed keys, locations, `--quiet`, `--json` and what is said about a dry run
            -> exit code.
    """

    def command(
        recipe: Recipe,
        set_: Set = [],  # noqa: B006
        limit: Limit = None,
        output: Output = RUNS,
        cache: Cache = None,
        tracking_uri: Tracking = None,
        resume: Resume = None,
        steal: Steal = False,
        continue_: Continue = False,
        address: Address = None,
        shard: Shard = None,
        mode: Mode = None,
        hash_content: HashContent = False,
        dry_run: Only = False,
        probe: Probe = False,
        price_per_hour: Price = None,
        controls: Controls = False,
        quiet: Quiet = False,
        json: Json = False,
        video_cache_gib: VideoCacheGib = None,
    ) -> None:
        flags = {"mode": mode, "hash_content": hash_content, "controls": controls}
        changes = _overrides(set_, limit=limit, shard=shard, **flags)
        changes += _overrides([], **{"decode.video_cache_gib": video_cache_gib})
        where = _locations(output, cache, address, tracking_uri, resume, steal, continue_)
        where = replace(where, recipe=redacted(str(recipe)))
        how = DryRunOptions(dry_run, probe, price_per_hour, json, bool(resume) or continue_)
        _exit(run(recipe, changes, where, quiet, json, how))

    return command


def _evaluate(
    recipe: Path,
    changes: list[str],
    locations: Locations,
    quiet: bool,
    json: bool,
    dry_run: DryRunOptions,
) -> int:
    from jobs.config.recipe import load_job

    job = load_job(recipe, changes)
    check_jobs([job], recipe, locations.output, locations.resume, locations.cache)
    if dry_run.only:
        from jobs.run.evaluate import single

        return dry_run.estimate([single(job)], "evaluate", locations)
    announce([job], "evaluate", quiet)
    with _early_ray([job], locations) as early:
        from jobs.run.evaluate import evaluate

        console = console_of(json)
        return evaluate(job, locations, console, early, display_of(console, quiet, json))


def _sweep(
    recipe: Path,
    changes: list[str],
    locations: Locations,
    quiet: bool,
    json: bool,
    dry_run: DryRunOptions,
) -> int:
    from jobs.config.recipe import load_jobs

    jobs = load_jobs(recipe, changes)
    resume = None if len(jobs) > 1 else locations.resume
    check_jobs(jobs, recipe, locations.output, resume, locations.cache)
    if dry_run.only:
        return dry_run.estimate(jobs, "sweep", locations)
    announce(jobs, "sweep", quiet)
    with _early_ray(jobs, locations) as early:
        from jobs.run.sweep import sweep

        console = console_of(json)
        return sweep(jobs, locations, console, early, display_of(console, quiet, json))


app.command("evaluate", help="Measure one method on one benchmark.")(_measuring(_evaluate))
app.command(
    "sweep", help="Measure several methods, retentions and benchmarks in one pass over the clips."
)(_measuring(_sweep))


@app.command()
def precompute(
    recipe: Recipe,
    set_: Set = [],  # noqa: B006
    limit: Limit = None,
    output: Output = RUNS,
    cache: Cache = None,
    tracking_uri: Tracking = None,
    address: Address = None,
    shard: Shard = None,
    hash_content: HashContent = False,
    dry_run: Only = False,
    probe: Probe = False,
    price_per_hour: Price = None,
    quiet: Quiet = False,
    json: Json = False,
    video_cache_gib: VideoCacheGib = None,
    features: Features = False,
) -> None:
    """Fill the token caches and answer nothing."""
    from jobs.config.recipe import load_jobs

    changes = _overrides(set_, limit=limit, shard=shard, hash_content=hash_content)
    changes += ["cache.features=all"] if features else []
    changes += _overrides([], **{"decode.video_cache_gib": video_cache_gib})
    jobs = load_jobs(recipe, changes)
    locations = replace(
        _locations(output, cache, address, tracking_uri), recipe=redacted(str(recipe))
    )
    check_jobs(jobs, recipe, locations.output, cache=cache)
    how = DryRunOptions(dry_run, probe, price_per_hour, json)
    if how.only:
        _exit(how.estimate(jobs, "precompute", locations))
    announce(jobs, "precompute", quiet)
    with _early_ray(jobs, locations) as early:
        from jobs.run.precompute import precompute

        console = console_of(json)
        display = display_of(console, quiet, json)
        code = max(precompute(job, locations, console, early, display) for job in jobs)
    _exit(code)


@app.command()
def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Look also at what this recipe needs.", callback=expanded),
    ] = None,
    set_: Set = [],  # noqa: B006
    output: Output = RUNS,
    cache: Cache = None,
    tracking_uri: Tracking = None,
    address: Address = None,
) -> None:
    """Say in one screen whether this machine can run, before a long job does."""
    from jobs.doctor.command import doctor

    where = _locations(output, cache, address, tracking_uri)
    _exit(doctor(recipe, set_, where, Console()))


app.command()(cli_submit.submit)
app.add_typer(cli_submit.jobs, name="jobs")
app.command()(cli_tools.ask)
app.command("check-method")(cli_methods.check_method)
app.command("train-tiny")(cli_tools.train_tiny)
app.add_typer(cli_analyze.analyze, name="analyze")
app.command("log-run")(cli_results.log_run)
app.command()(cli_results.report)
app.command()(cli_explain.explain)
app.command()(cli_view.view)
app.command()(cli_results.export)
app.command("import")(cli_results.import_)
cli_results.data.command("get")(cli_fetch.data_get)
app.add_typer(cli_results.data, name="data")
app.add_typer(cli_fetch.model, name="model")
app.add_typer(cli_runs.runs, name="runs")
app.add_typer(cli_cache.cache, name="cache")
app.command()(cli_completion.completion)


def main() -> None:
    """Entry point: what a user can cause, and a signal, ends in one line; see `exit_codes`."""
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with handled(last_words):
        code = _run()
        if LastingThread.is_busy():  # it would hold or break an orderly end of the interpreter
            leave(code)
    sys.exit(code)


def _run() -> int:
    """Run the command; its exit code."""
    handler = logging.StreamHandler()
    handler.addFilter(RedactingFilter())
    level = logging.getLogger().level
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    for noisy in (
        "ray",
        "httpx",
        "httpx2",
        "alembic",
        "mlflow",
        "matplotlib",
        "huggingface_hub",
        "transformers",
    ):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        cli_completion.prepare()
        code = run_app(app)
        if code == exit_codes.INTERRUPTED:
            raise KeyboardInterrupt
        return code
    except (KeyboardInterrupt, ValueError, OSError, WorkerError) as error:
        interrupted = isinstance(error, KeyboardInterrupt)  # where nobody handles signals
        text = "interrupted; what was finished is kept" if interrupted else str(error)
        if isinstance(error, StoreError):
            text += f"; {how_to_go_on()}"
        print(f"tango: {redacted(' '.join(text.split()))}", file=sys.stderr)
        return exit_codes.INTERRUPTED if interrupted else exit_codes.MISTAKE
    except ModuleNotFoundError:
        raise  # `entry.py` names the extra
    except Exception:  # a mistake of ours: everything about it, but no secret
        print(redacted(traceback.format_exc()), file=sys.stderr)
        return exit_codes.FAILED
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(level)


def _early_ray(
    jobs: Sequence[Job], locations: Locations
) -> AbstractContextManager[EarlyRay | None]:
    """A Ray that starts beside the imports, for jobs that will certainly run on it."""
    from jobs.run.executor import early_ray

    return early_ray(jobs, locations.address)


def _overrides(given: list[str], **flags: object) -> list[str]:
    """`--set` strings, followed by those that have a flag of their own and were given."""
    return [
        *given,
        *(f"{key}={value}" for key, value in flags.items() if value not in (None, False)),
    ]


def _locations(
    output: str,
    cache: str | None,
    address: str | None,
    tracking_uri: str | None = None,
    resume: str | None = None,
    steal: bool = False,
    continues: bool = False,
) -> Locations:
    """Where the job reads and writes."""
    from jobs.run.locations import Locations
    from pipeline.remote.urls import place

    return Locations(
        place(output), cache, tracking_uri, resume, address, steal=steal, continues=continues
    )


def _exit(code: int) -> None:
    """Leave with a code that scripts can rely on."""
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
