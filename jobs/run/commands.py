"""The jobs of `tango evaluate`, `sweep` and `precompute`, with summary, report and tracking."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from jobs import exit_codes
from jobs.config.overrides import load_yaml
from jobs.config.recipe import Job, RecipeError
from jobs.extras import raise_if_missing
from jobs.results.cell_summary import RunSummary
from jobs.results.facts import FAILURES_FILE, JOB_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import BuiltJob, build
from jobs.run.driver import JobResult, Kind, execute
from jobs.run.interrupt_message import all_answers_are_in, works_on
from jobs.run.locations import Locations
from jobs.run.progress import Display, JsonEvents
from jobs.run.run_dirs import find_run, finished_of_round, make_run_dir, new_run_dir, unfinished_run
from jobs.tracking.live import LiveRun
from jobs.tracking.runs import is_remote
from pipeline.metrics import JobBoard
from pipeline.redaction import redacted
from pipeline.runtime.stopping import at_stop
from pipeline.storage import Storage
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place

logger = logging.getLogger(__name__)


def run_jobs(
    jobs: Sequence[Job], locations: Locations, display: Display, kind: Kind = "sweep"
) -> int:
    """Run the jobs of a recipe, one after the other, and show their results; returns the exit code.

    If several jobs answer questions, a comparison is written at the end. A job that only fills
    caches skips clips that are already cached, so repeating the command continues it.

    Args:
        jobs: The jobs of the recipe.
        locations: Where the jobs read and write.
        display: Where progress and tables go.
        kind: The command.

    Raises:
        RecipeError: If several jobs are to continue one run, or a job is invalid.
    """
    raise_if_missing("jobs")
    several, fills = len(jobs) > 1, kind == "precompute"
    if several and locations.resume:
        raise RecipeError(
            f"--resume {locations.resume}: this recipe makes {len(jobs)} runs; "
            "resume each with the job.yaml in its directory"
        )
    locations.raise_if_unusable()
    if fills:  # profile mode would recompute cached clips
        jobs = [replace(job, mode="throughput") for job in jobs]
    # Build all jobs before the first one starts, to find errors in any of them at once.
    built = [build(job, locations.address) for job in jobs]
    run_dirs: dict[int, Place] = {}
    if several and locations.continues:
        run_dirs |= finished_of_round(jobs, locations.output, open_storage=locations.open_storage)
    codes = [exit_codes.OK]
    for number in [one for one in range(len(jobs)) if one not in run_dirs]:
        run_dir = run_dirs[number] = run_dir_of(jobs[number], locations)
        recipe = run_dir / JOB_FILE if several and not fills else None
        works_on(run_dir, recipe=recipe, caches_only=fills)
        codes.append(run_job(jobs[number], built[number], kind, locations, run_dir, display))
    if several and not fills:
        compare(jobs, [run_dirs[number] for number in range(len(jobs))], locations, display)
    return max(codes)


def run_job(
    job: Job,
    built: BuiltJob,
    kind: Kind,
    locations: Locations,
    run_dir: Place,
    display: Display,
) -> int:
    """Run one job, show its results, and upload them to MLflow while it runs and at the end.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        kind: The command.
        locations: Where the job reads and writes.
        run_dir: Directory of the run, new or continued.
        display: Where progress and tables go.

    Returns:
        Exit code: 1 if answers are missing or more clips failed than `max_failures` allows, else
        0; results are written in both cases.
    """
    board = JobBoard()
    events = JsonEvents(display.events, run_dir, board) if display.events else None
    recipe, uri = load_yaml(job.to_yaml()), locations.tracking_uri
    tracking = LiveRun(run_dir, recipe, uri, kind, every_s=job.tracking.every_s, board=board)
    summary = None
    with tracking as live, at_stop(lambda signal: live.end("KILLED", signal)):
        done = execute(
            *(job, built, kind, locations, run_dir, display.progress),
            observers=[live, *([events] if events else [])],
            board=board,
        )
        with local_copy(run_dir) as folder:
            if kind == "precompute":
                lines = _finish_caches(done, folder, locations)
            else:
                all_answers_are_in(run_dir)
                summary, lines = _finish_answers(done, folder, run_dir, display)
        display.say("\n".join(lines))
        with local_copy(run_dir, sent=lambda name: False) as folder:
            tracked = live.finish(folder)
    if tracked:
        display.say("\n".join(where(live.uri, tracked)))
    code = exit_code(job, done, run_dir)
    if events:
        events.finished(code, summary, tracked)
    return code


def _finish_answers(
    done: JobResult, folder: Path, run_dir: Place, display: Display
) -> tuple[RunSummary, list[str]]:
    """Write summary and report of a run; returns the summary and the lines to show."""
    # Imported here so that the job does not wait for the imports of plots and tables.
    from jobs.report.compare import REPORT_FILE, write_report
    from jobs.report.tables.cells import render_profile, render_table, table_width
    from jobs.results.quantities import unread_notes

    summary = write_report(folder)
    facts, cells = done.facts, summary.cells
    note = f" ({facts.note})" if facts.note else ""
    benchmarks = ", ".join(dict.fromkeys(cell.benchmark for cell in facts.cells))
    return summary, [
        f"\n{facts.model}{note} on {benchmarks}, {facts.mode} mode",
        render_table(cells, table_width(display.console.is_terminal, display.console.width)),
        *([f"\n{render_profile(cells)}\n"] if facts.mode == "profile" else []),
        *(f"warning: {text}" for text in unread_notes(cells)),
        *(f"skipped: {entry.name} ({entry.reason})" for entry in facts.skipped),
        f"clips:   {counted(done)}",
        f"answers: {run_dir / 'answers'}",
        f"report:  {run_dir / REPORT_FILE}",
    ]


def _finish_caches(done: JobResult, folder: Path, locations: Locations) -> list[str]:
    """Write the summary of a run that filled caches; returns the lines to show."""
    facts = done.facts
    content = {
        **{name: number for name, number in vars(done).items() if name.startswith("num_")},
        "facts": facts.to_json(),
        "run_id": facts.run_id,
        "work": asdict(facts.work) if facts.work else None,
        "cache": {"hits": done.num_hits, "misses": done.num_computed},
    }
    text = json.dumps(content, indent=2, default=str) + "\n"
    Storage.at(folder).write(SUMMARY_FILE, text.encode())
    root = redacted(locations.cache_root)
    return [
        f"clips:   {counted(done)}",
        *(f"cache:   {root}/{name}" for name in facts.caches),
        *([f"features: {root}/{facts.features}"] if facts.features else []),
    ]


def run_dir_of(job: Job, locations: Locations) -> Place:
    """Directory of the run to continue, or a new one."""
    output, open_storage = locations.output, locations.open_storage
    if locations.resume:
        return find_run(locations.resume, output, open_storage=open_storage)
    found = unfinished_run(job, output, open_storage=open_storage) if locations.continues else None
    return found or new_run_dir(job, output, open_storage=open_storage)


def where(tracking_uri: str, run_id: str) -> list[str]:
    """How to view a run in MLflow, in lines."""
    uri = redacted(tracking_uri).rstrip("/")
    page = uri if is_remote(uri) else "http://127.0.0.1:5000"
    return [
        *([] if is_remote(uri) else [f"MLflow:  mlflow ui --backend-store-uri {uri}"]),
        f"run:     {page}/#/runs/{run_id}",
    ]


def counted(result: JobResult) -> str:
    """Describe the numbers of processed, failed and cached clips."""
    missing = f", {result.num_missing} answers missing" if result.num_missing else ""
    return (
        f"{result.num_clips} ({result.num_decoded} decoded, {result.num_encoded} encoded, "
        f"{result.num_failed_clips} failed{missing}); token sets: {result.num_computed} computed, "
        f"{result.num_hits} from cache or stored features"
    )


def exit_code(job: Job, result: JobResult, run_dir: Place) -> int:
    """0 if no answer is missing and at most `max_failures` clips failed, otherwise 1.

    Logs where failed clips are listed; the driver has already logged missing answers.
    """
    failed, most = result.num_failed_clips, job.max_failures
    if failed > most:
        path = run_dir / FAILURES_FILE
        logger.error("%d clip(s) failed and max_failures is %d: see %s", failed, most, path)
    return exit_codes.of(failed <= most and not result.num_missing)


def compare(
    jobs: Sequence[Job], run_dirs: Sequence[Place], locations: Locations, display: Display
) -> None:
    """Write a comparison of the runs of one recipe into a new directory and print its table.

    Args:
        jobs: The jobs of the recipe.
        run_dirs: Run directory of each job.
        locations: Where the jobs read and write.
        display: Where the table goes.
    """
    from jobs.report.compare import report_runs  # slow import, needed only at the end

    benchmarks = "+".join(section.name for section in jobs[0].all_benchmarks)
    what = [benchmarks, jobs[0].model.name, "comparison"]
    folder = make_run_dir(what, locations.output, open_storage=locations.open_storage)
    with ExitStack() as copies:
        runs = [copies.enter_context(local_copy(run_dir)) for run_dir in run_dirs]
        into = copies.enter_context(local_copy(folder, lambda name: False))
        page = folder / report_runs(runs, into).name
        table = Storage.at(into).read("paper_table.md").decode()
    display.say(f"\n{len(jobs)} runs side by side\n\n{table}\nreport:  {page}")
