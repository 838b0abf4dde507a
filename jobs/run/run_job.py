"""From the answers of a job to what is read of it: summary, report, tracking, table, exit code."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs.config.recipe import Job
from jobs.report.page import write_report
from jobs.report.tables.cells import render_table
from jobs.report.tables.profile import render_profile
from jobs.results.summary import write_summary
from jobs.run.build import build
from jobs.run.directories import find_run, new_run_dir
from jobs.run.driver import Kind, Outcome, execute
from jobs.run.locations import Places
from jobs.tracking.server import default_tracking_uri
from jobs.tracking.upload import track_run

logger = logging.getLogger(__name__)


def measure(job: Job, kind: Kind, places: Places, console: Console) -> int:
    """Run a job that answers questions, and show what came of it.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows; the results are there in both
        cases.
    """
    ingredients = build(job)
    run_dir = (
        find_run(places.resume, places.output) if places.resume else new_run_dir(job, places.output)
    )
    outcome = execute(job, ingredients, kind, places, run_dir, console)
    summary = write_summary(run_dir)
    report = write_report(run_dir, summary)
    uri = places.tracking_uri or default_tracking_uri(places.output)
    tracked = track_run(run_dir, uri)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(heading(outcome))
    say(render_table(summary.cells))
    if job.mode == "profile":
        say(f"\n{render_profile(summary.cells)}\n")
    for entry in outcome.facts.skipped:
        say(f"left out: {entry.name} ({entry.reason})")
    say(f"clips:   {counted(outcome)}")
    say(f"answers: {run_dir / 'answers'}")
    say(f"report:  {report}")
    if tracked:
        say(f"MLflow:  mlflow ui --backend-store-uri {uri}")
    return exit_code(job, outcome, run_dir)


def heading(outcome: Outcome) -> str:
    """What was measured, and what a reader must know before believing it."""
    facts = outcome.facts
    benchmarks = ", ".join(dict.fromkeys(cell.benchmark for cell in facts.cells))
    note = f" ({facts.note})" if facts.note else ""
    return f"\n{facts.model}{note} on {benchmarks}, {facts.mode} mode"


def counted(outcome: Outcome) -> str:
    """What was done and what the caches saved, in words."""
    return (
        f"{outcome.num_clips} ({outcome.num_decoded} decoded, {outcome.num_encoded} encoded, "
        f"{outcome.num_failed_clips} failed); token sets: {outcome.num_computed} computed, "
        f"{outcome.num_hits} from cache"
    )


def exit_code(job: Job, outcome: Outcome, run_dir: Path) -> int:
    """0 while no more clips failed than allowed; otherwise 1, and a line says where they are."""
    if outcome.num_failed_clips <= job.max_failures:
        return 0
    logger.error(
        "%d clip(s) failed and max_failures is %d: see %s",
        outcome.num_failed_clips,
        job.max_failures,
        run_dir / "failures.parquet",
    )
    return 1
