"""A job with all that follows its answers: summary, report, tracking, table, exit code."""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec

from rich.console import Console

from jobs.config.recipe import Job
from jobs.run.build import build
from jobs.run.continuing import unfinished_run
from jobs.run.directories import find_run, new_run_dir
from jobs.run.driver import JobResult, Kind, execute
from jobs.run.locations import Locations
from pipeline.executors.early import EarlyRay
from pipeline.redaction import redacted
from pipeline.remote.copies import local_copy
from pipeline.remote.urls import Place
from pipeline.run import run

logger = logging.getLogger(__name__)


def measure(
    job: Job, kind: Kind, locations: Locations, console: Console, early: EarlyRay | None = None
) -> int:
    """Run a job that answers questions, and show its results.

    Args:
        job: The recipe.
        kind: The command.
        locations: Where the job reads and writes.
        console: Where progress and tables go.
        early: A Ray that is on its way, for a job that runs on it.

    Returns:
        0, or 1 if answers are missing or more clips failed than `max_failures` allows; the results
        are there in both cases.
    """
    _raise_if_not_installed()
    built = build(job)
    output, open_storage = locations.output, locations.open_storage
    run_dir = None
    if locations.resume:
        run_dir = find_run(locations.resume, output, open_storage=open_storage)
    elif locations.continues:
        run_dir = unfinished_run(job, output, open_storage=open_storage)
    if run_dir is None:
        run_dir = new_run_dir(job, output, open_storage=open_storage)
    job_result = execute(
        job, built, kind, locations, run_dir, console, run_plan=partial(run, early=early)
    )
    # Imported when there are results: plots and tables need two seconds that no clip waits for.
    from jobs.report.page import write_report
    from jobs.report.tables.cells import render_table
    from jobs.report.tables.profile import render_profile
    from jobs.results.summary import write_summary
    from jobs.tracking.server import default_tracking_uri
    from jobs.tracking.upload import track_run

    with local_copy(run_dir) as folder:
        summary = write_summary(folder)
        report = run_dir / write_report(folder, summary).name
    uri = locations.tracking_uri or default_tracking_uri(locations.output)
    tracked = track_run(run_dir, uri)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(heading(job_result))
    say(render_table(summary.cells))
    if job.mode == "profile":
        say(f"\n{render_profile(summary.cells)}\n")
    for entry in job_result.facts.skipped:
        say(f"skipped: {entry.name} ({entry.reason})")
    say(f"clips:   {counted(job_result)}")
    say(f"answers: {run_dir / 'answers'}")
    say(f"report:  {report}")
    if tracked:
        say(f"MLflow:  mlflow ui --backend-store-uri {redacted(uri)}")
    return exit_code(job, job_result, run_dir)


def _raise_if_not_installed() -> None:
    """Miss what shows the results before the job, not after it; finding is not importing."""
    for name in ("matplotlib", "mlflow", "pandas"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def heading(job_result: JobResult) -> str:
    """What was measured, and what a reader must know before believing it."""
    facts = job_result.facts
    benchmarks = ", ".join(dict.fromkeys(cell.benchmark for cell in facts.cells))
    note = f" ({facts.note})" if facts.note else ""
    return f"\n{facts.model}{note} on {benchmarks}, {facts.mode} mode"


def counted(job_result: JobResult) -> str:
    """What was done and what the caches saved, in words."""
    failed = f"{job_result.num_failed_clips} failed"
    if job_result.num_missing:
        failed += f", {job_result.num_missing} answers missing"
    return (
        f"{job_result.num_clips} ({job_result.num_decoded} decoded, "
        f"{job_result.num_encoded} encoded, "
        f"{failed}); token sets: {job_result.num_computed} computed, "
        f"{job_result.num_hits} from cache"
    )


def exit_code(job: Job, job_result: JobResult, run_dir: Place) -> int:
    """0 while no answer is missing and no more clips failed than allowed, otherwise 1.

    A line says where the failures are; the driver has named what is missing.
    """
    if job_result.num_missing:
        return 1
    if job_result.num_failed_clips <= job.max_failures:
        return 0
    logger.error(
        "%d clip(s) failed and max_failures is %d: see %s",
        job_result.num_failed_clips,
        job.max_failures,
        run_dir / "failures.parquet",
    )
    return 1
