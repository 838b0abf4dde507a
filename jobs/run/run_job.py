"""A job with all that follows its answers: summary, report, tracking, table, exit code."""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec

from jobs import exit_codes
from jobs.config.recipe import Job
from jobs.results.facts import FAILURES_FILE
from jobs.run.build import BuiltJob
from jobs.run.continuing import unfinished_run
from jobs.run.desk import desk_of, results_of, tracking_uri_of
from jobs.run.directories import find_run, new_run_dir
from jobs.run.display import Display
from jobs.run.driver import execute
from jobs.run.job_facts import Kind
from jobs.run.json_events import JsonEvents
from jobs.run.last_words import all_answers_are_there, works_on
from jobs.run.locations import Locations
from jobs.run.outcome import JobResult
from jobs.run.report_modules import ReportModules
from jobs.tracking.live import LiveRun
from jobs.tracking.server import is_remote
from pipeline.metrics import JobBoard
from pipeline.redaction import redacted
from pipeline.run import run
from pipeline.runtime.stopping import at_stop
from pipeline.storage.urls import Place

logger = logging.getLogger(__name__)


def measure(
    job: Job,
    built: BuiltJob,
    kind: Kind,
    locations: Locations,
    display: Display,
    *,
    one_of_several: bool = False,
) -> tuple[int, Place]:
    """Run a job that answers questions, and show its results; MLflow gets them last of all.

    Args:
        job: The recipe.
        built: What it names.
        kind: The command.
        locations: Where the job reads and writes.
        display: Where progress and tables go.
        one_of_several: Whether the command line stands for more runs than this one.

    Returns:
        0, or 1 if answers are missing or more clips failed than `max_failures` allows; the results
        are there in both cases. Then the run directory.
    """
    _raise_if_not_installed()
    run_dir = _run_dir_of(job, built, locations)
    works_on(run_dir, recipe=run_dir / "job.yaml" if one_of_several else None)
    board = JobBoard()
    events = JsonEvents(display.events, run_dir, board) if display.events else None
    every_s = job.tracking.every_s
    uri = tracking_uri_of(locations)
    with (
        desk_of(run_dir) as desk,
        LiveRun(desk, uri, kind, every_s=every_s, board=board) as live,
        at_stop(lambda signal: live.end("KILLED", signal)),
    ):
        job_result = execute(
            job,
            built,
            kind,
            locations,
            run_dir,
            display.progress,
            run_plan=partial(run, board=board),
            observers=[live, ReportModules(), *([events] if events else [])],
            board=board,
        )
        all_answers_are_there()
        # Not at the start: no clip waits for what plots and tables need.
        from jobs.report.page import write_report
        from jobs.report.tables.cells import render_profile, render_table
        from jobs.results.replies import unread_notes
        from jobs.results.summary import write_summary

        with results_of(run_dir, desk) as folder:
            summary = write_summary(folder)
            report = run_dir / write_report(folder, summary).name
        say = display.say
        say(heading(job_result))
        say(render_table(summary.cells, display.table_width))
        if job.mode == "profile":
            say(f"\n{render_profile(summary.cells)}\n")
        for note in unread_notes(summary.cells):
            say(f"warning: {note}")
        for entry in job_result.facts.skipped:
            say(f"skipped: {entry.name} ({entry.reason})")
        say(f"clips:   {counted(job_result)}")
        say(f"answers: {run_dir / 'answers'}")
        say(f"report:  {report}")
        tracked = live.finish()
    if tracked:
        say(f"MLflow:  {where(live.uri, tracked)}")
    code = exit_code(job, job_result, run_dir)
    if events:
        events.finished(code, summary, tracked)
    return code, run_dir


def _run_dir_of(job: Job, built: BuiltJob, locations: Locations) -> Place:
    """The run that is continued, or the directory of a new one."""
    output, open_storage = locations.output, locations.open_storage
    found = None
    if locations.resume:
        found = find_run(locations.resume, output, open_storage=open_storage)
    elif locations.continues:
        found = unfinished_run(job, output, open_storage=open_storage)
    if found is not None:
        return found
    methods = [name for name, _ in built.methods]
    return new_run_dir(job, output, methods=methods, open_storage=open_storage)


def where(tracking_uri: str, run_id: str) -> str:
    """How to look at a run: its page on a server, or the command that shows the runs of a store."""
    uri = redacted(tracking_uri)
    # The page of an experiment shows traces until the reader chooses otherwise.
    if is_remote(uri):
        return f"{uri.rstrip('/')}/#/runs/{run_id}"
    return f"mlflow ui --backend-store-uri {uri}"


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
        return exit_codes.FAILED
    if job_result.num_failed_clips <= job.max_failures:
        return exit_codes.OK
    logger.error(
        "%d clip(s) failed and max_failures is %d: see %s",
        job_result.num_failed_clips,
        job.max_failures,
        run_dir / FAILURES_FILE,
    )
    return exit_codes.FAILED
