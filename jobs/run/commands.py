"""The jobs of `tango evaluate`, `sweep` and `precompute`, with summary, report and tracking."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError
from jobs.results.facts import FAILURES_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import BuiltJob, build
from jobs.run.driver import execute
from jobs.run.interrupt_message import all_answers_are_there, works_on
from jobs.run.job_facts import Kind
from jobs.run.json_events import JsonEvents
from jobs.run.locations import Locations
from jobs.run.outcome import JobResult
from jobs.run.placement import Cluster
from jobs.run.progress import Display
from jobs.run.run_dirs import find_run, finished_of_round, make_run_dir, new_run_dir, unfinished_run
from jobs.tracking.events import is_events_file
from jobs.tracking.live import LiveRun
from jobs.tracking.server import default_tracking_uri, is_remote
from pipeline.metrics import JobBoard
from pipeline.redaction import redacted
from pipeline.run import run
from pipeline.runtime.stopping import at_stop
from pipeline.storage import Storage
from pipeline.storage.copies import local_copy
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
        staging_of(run_dir) as staging,
        LiveRun(staging, uri, kind, every_s=every_s, board=board) as live,
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
            observers=[live, *([events] if events else [])],
            board=board,
        )
        all_answers_are_there()
        # Not at the start: no clip waits for what plots and tables need.
        from jobs.report.page import write_report
        from jobs.report.tables.cells import render_profile, render_table
        from jobs.results.replies import unread_notes
        from jobs.results.summary import write_summary

        with results_of(run_dir, staging) as folder:
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


def sweep(
    jobs: Sequence[Job],
    locations: Locations,
    console: Console,
    display: Display | None = None,
    kind: Kind = "sweep",
) -> int:
    """Measure any number of methods in one streaming execution; returns the exit code.

    Args:
        jobs: What the recipe stands for; several make one run each, one after the other, and then
            one comparison of all.
        locations: Where the jobs read and write.
        console: Where the tables go.
        display: How progress is shown beside them.
        kind: The command.

    Raises:
        RecipeError: If several jobs are to continue one run, or one names what is not there.
    """
    if len(jobs) > 1 and locations.resume:
        raise RecipeError(
            f"--resume {locations.resume}: this recipe makes {len(jobs)} runs; "
            "resume each with the job.yaml in its directory"
        )
    shown, several = display or Display.on(console), len(jobs) > 1
    cluster = Cluster(locations.address)
    built = [
        build(job, cluster, locations.recipe) for job in jobs
    ]  # what the last one lacks ends all, at once
    finished = (
        finished_of_round(jobs, locations.output, open_storage=locations.open_storage)
        if several and locations.continues
        else {}
    )
    run_dirs, code = dict(finished), exit_codes.OK
    for number in (one for one in range(len(jobs)) if one not in finished):
        own_code, run_dirs[number] = measure(
            jobs[number],
            built[number],
            kind,
            locations,
            shown,
            one_of_several=several,
        )
        code = max(code, own_code)
    if several:
        compare(jobs, [run_dirs[number] for number in range(len(jobs))], locations, shown)
    return code


def compare(
    jobs: Sequence[Job], run_dirs: Sequence[Place], locations: Locations, display: Display
) -> None:
    """Set the runs of one recipe side by side, in a directory beside theirs, and show the table.

    Args:
        jobs: What was run.
        run_dirs: The run of each.
        locations: Where the jobs read and write.
        display: Where the table goes.
    """
    from jobs.report.compare import report_runs  # tables and plots are needed at the end only

    first = jobs[0]
    benchmarks = "+".join(section.name for section in first.all_benchmarks)
    what = [benchmarks, first.model.name, "comparison"]
    folder = make_run_dir(what, locations.output, open_storage=locations.open_storage)
    with ExitStack() as copies:
        runs = [copies.enter_context(local_copy(run_dir)) for run_dir in run_dirs]
        into = copies.enter_context(local_copy(folder, lambda name: False))
        page = folder / report_runs(runs, into).name
        table = Storage.at(into).read("paper_table.md").decode()
    display.say(f"\n{len(jobs)} runs side by side\n\n{table}")
    display.say(f"report:  {page}")


def precompute(
    job: Job,
    locations: Locations,
    console: Console,
    display: Display | None = None,
) -> int:
    """Compress every clip of the recipe with every method of the recipe; returns the exit code.

    With a feature store the features of every clip are stored, too.

    A clip that is in the cache already is not touched, so the same command continues after an
    interruption.
    """
    job = replace(job, mode="throughput")  # a profile would compute again what is in the cache
    built = build(job, Cluster(locations.address), locations.recipe)
    methods = [name for name, _ in built.methods]
    run_dir = new_run_dir(
        job, locations.output, methods=methods, open_storage=locations.open_storage
    )
    works_on(run_dir, caches_only=True)
    display, board = display or Display.on(console), JobBoard()
    events = JsonEvents(display.events, run_dir, board) if display.events else None
    uri, every_s = tracking_uri_of(locations), job.tracking.every_s
    with (
        staging_of(run_dir) as staging,
        LiveRun(staging, uri, "precompute", every_s=every_s, board=board) as live,
        at_stop(lambda signal: live.end("KILLED", signal)),
    ):
        job_result = execute(
            job,
            built,
            "precompute",
            locations,
            run_dir,
            display.progress,
            run_plan=partial(run, board=board),
            observers=[live, *([events] if events else [])],
            board=board,
        )
        text = json.dumps(_summary(job_result), indent=2, default=str) + "\n"
        with results_of(run_dir, staging) as folder:
            Storage.at(folder).write(SUMMARY_FILE, text.encode())
        display.say(f"clips:   {counted(job_result)}")
        for name in job_result.facts.caches:
            display.say(f"cache:   {redacted(locations.cache_root)}/{name}")
        if job_result.facts.features:
            display.say(f"features: {redacted(locations.cache_root)}/{job_result.facts.features}")
        tracked = live.finish()
    if tracked:
        display.say(f"MLflow:  {where(live.uri, tracked)}")
    code = exit_code(job, job_result, run_dir)
    if events:
        events.finished(code, None, tracked)
    return code


def _summary(job_result: JobResult) -> dict[str, Any]:
    """What `summary.json` holds: the counts, and what every run says of its work and its caches."""
    facts = job_result.facts
    return {
        **asdict(job_result),
        "facts": facts.to_json(),
        "run_id": facts.run_id,
        "work": asdict(facts.work) if facts.work else None,
        "cache": {"hits": job_result.num_hits, "misses": job_result.num_computed},
    }


@contextmanager
def staging_of(run_dir: Place) -> Iterator[Path]:
    """A local directory with the recipe of a run and the metrics it records for MLflow.

    That of a local run is the run itself. Metrics of a run in a store are uploaded to it when the
    job ends without an error.
    """
    with local_copy(
        run_dir, lambda name: name == JOB_FILE or is_events_file(name), is_events_file
    ) as folder:
        yield folder


@contextmanager
def results_of(run_dir: Place, staging: Path) -> Iterator[Path]:
    """A local copy of a run; files written there are uploaded, and copied to `staging`."""
    with local_copy(run_dir, lambda name: not is_events_file(name)) as folder:
        yield folder
        if folder != staging:
            shutil.copytree(folder, staging, dirs_exist_ok=True)


def tracking_uri_of(locations: Locations) -> str | None:
    """Where a job logs; `None` for the SQLite store beside a run on a disk."""
    if locations.tracking_uri or isinstance(locations.output, Path):
        return locations.tracking_uri
    return default_tracking_uri(locations.output)
