"""Several runs side by side: one table, one page, paired tests across runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from jobs.report.controls import control_notes
from jobs.report.notes import few_clips_notes, skipped_notes
from jobs.report.page import REPORT_FILE, render_html, write_report
from jobs.report.plots import save_plots
from jobs.report.tables.files import write_confusion, write_tables
from jobs.report.tables.labels import labels
from jobs.results.baselines import full_index, unpaired_notes, with_baselines
from jobs.results.cell_summary import BASELINE, CellSummary
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.measurements import normalize
from jobs.results.quantities import CacheCounts, Comparison, QuestionCounts
from jobs.results.run_summary import RunsSummary, RunSummary
from jobs.results.summary import compare_rows, failed_rows, read_answers, save_summary, summarize
from pipeline.storage import Storage


@dataclass(frozen=True)
class LoadedRun:
    """One run with everything a comparison reads of it."""

    folder: Path
    facts: JobFacts
    answers: pd.DataFrame
    summary: RunSummary

    def rows(self, cell: CellSummary) -> pd.DataFrame:
        """Answers of one cell."""
        own = (self.answers["cell"] == cell.name) & (self.answers["benchmark"] == cell.benchmark)
        return self.answers.loc[own]


# A cell and the run it is of.
_Pair = tuple[LoadedRun, CellSummary]


def report_runs(
    run_dirs: Sequence[Path],
    output: Path | None = None,
    *,
    published: bool = False,
    baselines: Sequence[str] = (),
    confusion: str | None = None,
) -> Path:
    """Write tables (Markdown, CSV, LaTeX), plots and a page for one run or for several.

    Args:
        run_dirs: Finished runs.
        output: Where to write; `None` writes into the run itself, which must then be the only one.
        published: Set the numbers of the Tango paper beside ours in `paper_table.*`.
        baselines: What every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions for `confusion.*`; `None` writes none.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there is no run, or several and no place to write to, or a baseline or group
            that the runs do not have.
    """
    if not run_dirs or (len(run_dirs) > 1 and output is None):
        raise ValueError(
            f"report of {len(run_dirs)} runs: name at least one run, and a directory to write to "
            "with --output when there are several"
        )
    runs = [_load(folder) for folder in run_dirs]
    pairs = [(run, cell) for run in runs for cell in run.summary.cells]
    cells, reference = [cell for _, cell in pairs], BASELINE
    if output is not None:
        cells, reference = _paired_cells(pairs)
    cells = with_baselines(cells, baselines, lambda one, other: _compare(pairs[one], pairs[other]))
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    if confusion is not None:
        write_confusion(cells, [run.rows(cell) for run, cell in pairs], confusion, folder)
    notes = [
        *skipped_notes(run.facts for run in runs),
        *unpaired_notes(cells),
        *few_clips_notes(cells),
    ]
    write_tables(cells, folder, published=published, notes=notes)
    if output is None:
        save_summary(runs[0].summary, folder)
        return write_report(folder, replace(runs[0].summary, cells=tuple(cells)))
    notes += control_notes(cells, lambda index: pairs[index][0].rows(pairs[index][1]), output)
    return _write_comparison(runs, cells, output, reference, notes)


def _write_comparison(
    runs: Sequence[LoadedRun],
    cells: Sequence[CellSummary],
    output: Path,
    reference: str,
    notes: Sequence[str],
) -> Path:
    """Write summary, plots and page of all cells together; returns the page's path."""
    facts = _facts(runs)
    summary = RunsSummary(
        run_id=facts.run_id,
        kind=facts.kind,
        runs=tuple(run.facts.run_id for run in runs),
        note=facts.note,
        skipped=facts.skipped,
        counts=QuestionCounts.total(run.summary.counts for run in runs),
        cache=CacheCounts.total(run.summary.cache for run in runs),
        cells=tuple(cells),
    )
    save_summary(summary, output)
    save_plots(cells, output / "plots")
    failures = pd.concat([failed_rows(run.answers) for run in runs], ignore_index=True)
    jobs = {
        f"{run.facts.run_id}/{JOB_FILE}": (run.folder / JOB_FILE).read_text()
        for run in runs
        if (run.folder / JOB_FILE).is_file()
    }
    page = render_html(
        summary, facts, failures=failures, jobs=jobs, baseline=reference, notes=notes
    )
    Storage.at(output).write(REPORT_FILE, page.encode())
    return output / REPORT_FILE


def _load(folder: Path) -> LoadedRun:
    """Read and summarise one run."""
    facts = JobFacts.load(folder)
    answers = normalize(read_answers(folder))
    return LoadedRun(folder, facts, answers, summarize(answers, facts))


def _paired_cells(pairs: Sequence[_Pair]) -> tuple[list[CellSummary], str]:
    """All cells, each with its comparison, and what most of them are compared with.

    A cell is compared with `full` of its own run, or else with the cell that `full_index` finds
    among all runs. Questions that only one of the two was asked do not count.
    """
    cells = [cell for _, cell in pairs]
    names = set()
    for index, (run, cell) in enumerate(pairs):
        if cell.versus_full is not None or cell.is_baseline:
            continue
        other = full_index(index, cells)
        if other is None:
            continue
        cells[index] = replace(cell, versus_full=_compare((run, cell), pairs[other]))
        usual = cells[other].is_baseline and cells[other].model == cell.model
        names.add(BASELINE if usual else labels(cells)[other])
    return cells, " or ".join(sorted(names)) or BASELINE


def _compare(pair: _Pair, other: _Pair) -> Comparison | None:
    """The paired comparison of two cells."""
    (run, cell), (other_run, other_cell) = pair, other
    return compare_rows(run.rows(cell), other_run.rows(other_cell), _shared_mode(run, other_run))


def _shared_mode(run: LoadedRun, other: LoadedRun) -> str:
    """Latencies may be compared only if both runs measured in profile mode on equal devices."""
    alike = (run.facts.mode, run.facts.device) == (other.facts.mode, other.facts.device)
    return run.facts.mode if alike else "throughput"


def _facts(runs: Sequence[LoadedRun]) -> JobFacts:
    """What holds for all runs together."""
    first = runs[0].facts
    every = [run.facts for run in runs]
    return replace(
        first,
        run_id=f"comparison of {len(runs)} runs",
        kind="comparison",
        model=", ".join(dict.fromkeys(facts.model for facts in every)),
        cells=tuple(cell for facts in every for cell in facts.cells),
        mode=first.mode if len({facts.mode for facts in every}) == 1 else "throughput",
        wall_s=None,
        started_at="",
        note=" ".join(dict.fromkeys(facts.note for facts in every if facts.note)),
        git_commit=", ".join(dict.fromkeys(facts.git_commit for facts in every)),
        skipped=tuple(dict.fromkeys(entry for facts in every for entry in facts.skipped)),
        caches=tuple(dict.fromkeys(cache for facts in every for cache in facts.caches)),
        device=", ".join(dict.fromkeys(facts.device for facts in every)),
        peak_gib=None,
    )
