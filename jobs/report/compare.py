"""Several runs side by side: one table, one page, paired tests across runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jobs.report.common import On
from jobs.report.controls import control_notes
from jobs.report.gallery import gallery
from jobs.report.page import REPORT_FILE, render_html, write_report
from jobs.report.paired import LoadedRun, compared_runs
from jobs.report.shards import joined
from jobs.report.tables.files import write_confusion, write_tables
from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.failures import FailureList, FailureReasons
from jobs.results.quantities import CacheCounts, QuestionCounts
from jobs.results.readings import are_ranked
from jobs.results.run_summary import RunsSummary, RunSummary
from jobs.results.summary import save_summary
from pipeline.storage import Storage


def report_runs(
    run_dirs: Sequence[Path],
    output: Path | None = None,
    *,
    published: bool = False,
    baselines: Sequence[str] = (),
    confusion: str | None = None,
    on: On = "common",
    num_clips: int = 0,
) -> Path:
    """Write tables (Markdown, CSV, LaTeX), plots and a page for one run or for several.

    Runs that are shards of one job become one result. Other runs are compared on the questions that
    all of them were asked.

    Args:
        run_dirs: Finished runs.
        output: Where to write; `None` writes into the run itself, which must then be the only one.
        published: Set the numbers of the Tango paper beside ours in `paper_table.*`.
        baselines: What every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions for `confusion.*`; `None` writes none.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        num_clips: Clips to draw on the page of one run, which decodes their frames again.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there is no run, or several and no place to write to, or a baseline or group
            that the runs do not have, or shards overlap, or runs have no question in common.
    """
    if not run_dirs or (len(run_dirs) > 1 and output is None):
        raise ValueError(
            f"report of {len(run_dirs)} runs: name at least one run, and a directory to write to "
            "with --output when there are several"
        )
    found = compared_runs(
        run_dirs, baselines=baselines, confusion=confusion, on=on, across=output is not None
    )
    runs, cells, notes = found.runs, found.cells, list(found.notes)
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    counted = [
        run.confusions for run in runs for _ in run.summary.cells if run.confusions is not None
    ]
    if counted:
        write_confusion(cells, counted, folder)
    write_tables(cells, folder, published=published, notes=notes)
    if output is None:
        save_summary(runs[0].summary, folder)
        drawn = gallery(folder, cells, num_clips)
        return write_report(folder, replace(runs[0].summary, cells=tuple(cells)), drawn)
    if are_ranked(cells):
        notes += control_notes(cells, found.answers, output)
    return _write_comparison(runs, cells, output, notes)


def _write_comparison(
    runs: Sequence[LoadedRun],
    cells: Sequence[CellSummary],
    output: Path,
    notes: Sequence[str],
) -> Path:
    """Write summary, plots and page of all cells together; returns the page's path."""
    facts = _facts(runs)
    summary: RunSummary | RunsSummary
    if len(runs) == 1 and runs[0].group.shards:  # what the whole job would have written
        facts, summary = runs[0].facts, replace(runs[0].summary, cells=tuple(cells))
    else:
        summary = _summary(runs, cells, facts)
    save_summary(summary, output)
    jobs = {
        f"{facts.run_id}/{JOB_FILE}": (folder / JOB_FILE).read_text()
        for run in runs
        for folder, facts in zip(run.group.folders, run.group.facts, strict=True)
        if (folder / JOB_FILE).is_file()
    }
    page = render_html(summary, facts, jobs=jobs, notes=notes, plots_in=output / "plots")
    Storage.at(output).write(REPORT_FILE, page.encode())
    return output / REPORT_FILE


def _summary(
    runs: Sequence[LoadedRun], cells: Sequence[CellSummary], facts: JobFacts
) -> RunsSummary:
    """The numbers of several runs."""
    return RunsSummary(
        run_id=facts.run_id,
        kind=facts.kind,
        runs=tuple(facts.run_id for run in runs for facts in run.group.facts),
        note=facts.note,
        skipped=facts.skipped,
        counts=QuestionCounts.total(run.summary.counts for run in runs),
        cache=CacheCounts.total(run.summary.cache for run in runs),
        failures=FailureList.of(FailureReasons().merge(run.reduction.failures for run in runs)),
        cells=tuple(cells),
    )


def _facts(runs: Sequence[LoadedRun]) -> JobFacts:
    """What holds for all runs together."""
    first = runs[0].facts
    every = [run.facts for run in runs]
    return replace(
        first,
        run_id=f"comparison of {len(runs)} runs",
        kind="comparison",
        model=joined(facts.model for facts in every),
        cells=tuple(cell for facts in every for cell in facts.cells),
        mode=first.mode if len({facts.mode for facts in every}) == 1 else "throughput",
        wall_s=None,
        started_at="",
        note=" ".join(dict.fromkeys(facts.note for facts in every if facts.note)),
        git_commit=joined(facts.git_commit for facts in every),
        skipped=tuple(dict.fromkeys(entry for facts in every for entry in facts.skipped)),
        caches=tuple(dict.fromkeys(cache for facts in every for cache in facts.caches)),
        device=joined(facts.device for facts in every),
        peak_gib=None,
    )
