"""Compare several runs: one table, one page, paired tests across runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.report.formatting import latex_notes, markdown_notes
from jobs.report.gallery import gallery
from jobs.report.notes import (
    On,
    answers_in,
    common_questions,
    control_notes,
    few_clips_notes,
    incomplete_group_notes,
    lost_answers_notes,
    question_notes,
    raise_if_none,
    right_wrong,
    shown_notes,
    skipped_notes,
)
from jobs.report.page import REPORT_FILE, render_html, write_report
from jobs.report.shards import RunGroup, grouped, joined
from jobs.report.tables.breakdowns import (
    all_scores,
    breakdowns_csv,
    breakdowns_markdown,
    differences_csv,
    scores_csv,
)
from jobs.report.tables.cells import cells_csv, cells_latex, cells_markdown, grid_markdown
from jobs.report.tables.confusion import confusion_markdown, confusion_table
from jobs.report.tables.paper import paper_table
from jobs.results.baselines import full_index, unpaired_notes, with_baselines
from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import RightWrong
from jobs.results.facts import JOB_FILE, JobFacts
from jobs.results.measurements import add_reason, sorted_reasons
from jobs.results.outcomes import compare_cells
from jobs.results.quantities import CacheCounts, Comparison, QuestionCounts
from jobs.results.reduction import Reduction, questions_asked, reduce_runs
from jobs.results.replies import FailureList, FailureReason, are_ranked, rule_notes, unread_notes
from jobs.results.run_summary import RunsSummary, RunSummary
from jobs.results.summary import save_summary, summarize_reduced
from pipeline.progress.parts import Digests
from pipeline.storage import Storage
from tango_core.errors import InputError


@dataclass(frozen=True)
class LoadedRun:
    """One run, or the shards of one job, loaded for a comparison."""

    group: RunGroup
    facts: JobFacts
    reduction: Reduction
    summary: RunSummary


# A cell and its run.
_Pair = tuple[LoadedRun, CellSummary]


@dataclass(frozen=True)
class ComparedRuns:
    """One or several runs with all comparisons of their cells.

    Attributes:
        runs: The runs; shards of one job count as one run.
        cells: All cells of all runs, in order.
        notes: Notes to print below the table.
    """

    runs: tuple[LoadedRun, ...]
    cells: tuple[CellSummary, ...]
    notes: tuple[str, ...]

    def answers(self, index: int) -> RightWrong:
        """Answers of a cell."""
        run, cell = _pairs(self.runs)[index]
        return right_wrong(run.reduction, cell)


def compared_runs(
    run_dirs: Sequence[Path],
    *,
    baselines: Sequence[str] = (),
    on: On = "common",
    across: bool = True,
    confusion: str | None = None,
) -> ComparedRuns:
    """Read runs and compare their cells; nothing is written.

    Args:
        run_dirs: Finished runs; shards of one job are merged.
        baselines: Cells that every cell is compared with besides `full`; see `with_baselines`.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        across: Whether cells are compared with `full` of another run if their own run has none.
        confusion: Group of the questions by which right and chosen options are counted.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If a baseline or group does not exist, shards overlap, or runs have no question
            in common.
    """
    groups = grouped(run_dirs)
    about_questions, only = _common(groups, on)
    runs = tuple(_load(group, only, confusion or "") for group in groups)
    if len(runs) == 1 and not groups[0].shards:
        found = answers_in(runs[0].summary.cells)
        about_questions = lost_answers_notes(runs[0].facts, found, run_dirs)
    pairs = _pairs(runs)
    cells = _paired_cells(pairs) if across else [cell for _, cell in pairs]
    cells = with_baselines(cells, baselines, lambda one, other: _compare(pairs[one], pairs[other]))
    notes = (
        *(note for run in runs for note in run.group.notes()),
        *about_questions,
        *shown_notes([(run.facts.run_id, run.reduction.outcomes) for run in runs]),
        *skipped_notes(run.facts for run in runs),
        *unread_notes(cells),
        *unpaired_notes(cells),
        *(few_clips_notes(cells) if are_ranked(cells) else []),
        *incomplete_group_notes(cells),
        *rule_notes(cells),
    )
    return ComparedRuns(runs, tuple(cells), notes)


def _pairs(runs: Sequence[LoadedRun]) -> list[_Pair]:
    """All (run, cell) pairs."""
    return [(run, cell) for run in runs for cell in run.summary.cells]


def _common(groups: Sequence[RunGroup], on: On) -> tuple[list[str], Mapping[str, Digests] | None]:
    """Notes about questions that not all runs have, and the questions to compare on.

    Raises:
        ValueError: If runs have no question in common, or shards have common questions.
    """
    if len(groups) == 1 and not groups[0].shards:
        return [], None
    asked, lost = [], []
    for group in groups:
        parts = [questions_asked(folder) for folder in group.folders]
        facts, union = group.merged_facts(), group.union(parts)
        asked.append((facts.run_id, union))
        # A part holds all answers about its clips, so a lost part also removes questions.
        found = sum(len(union.get(cell.benchmark, ())) for cell in facts.cells)
        lost += lost_answers_notes(facts, found, group.folders)
    common = common_questions(asked)
    if on == "common":
        raise_if_none(asked, common)
    return [*lost, *question_notes(asked, common, on)], common if on == "common" else None


def _load(group: RunGroup, only: Mapping[str, Digests] | None, confusion: str) -> LoadedRun:
    """Read and summarise one run, or the shards of one job."""
    facts = group.merged_facts()
    reduction = reduce_runs(group.folders, facts.mode, only=only, confusion=confusion)
    return LoadedRun(group, facts, reduction, summarize_reduced(reduction, facts))


def _paired_cells(pairs: Sequence[_Pair]) -> list[CellSummary]:
    """All cells, each compared with the unpruned baseline `full`.

    The baseline is `full` of the cell's own run, or else the one that `full_index` finds among all
    runs. Only questions that both have are compared.
    """
    cells = [cell for _, cell in pairs]
    for index, (run, cell) in enumerate(pairs):
        if cell.versus_full is not None or cell.is_baseline:
            continue
        other = full_index(index, cells)
        if other is not None:
            cells[index] = replace(cell, versus_full=_compare((run, cell), pairs[other]))
    return cells


def _compare(pair: _Pair, other: _Pair) -> Comparison | None:
    """The paired comparison of two cells."""
    (run, cell), (other_run, other_cell) = pair, other
    ours, theirs = (one.reduction.outcomes.get(cell.benchmark) for one in (run, other_run))
    if ours is None or theirs is None:
        return None
    # Latencies are comparable only if both were measured in profile mode on equal devices.
    profile = run.facts.mode == "profile" == other_run.facts.mode
    return compare_cells(
        ours,
        cell.name,
        theirs,
        other_cell.name,
        profile=profile and run.facts.device == other_run.facts.device,
    )


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
    """Write tables (Markdown, CSV, LaTeX), plots and a page for one or several runs.

    Shards of one job are merged. Other runs are compared on their common questions.

    Args:
        run_dirs: Finished runs.
        output: Output directory; `None` writes into the run directory, for a single run only.
        published: Add the numbers of the Tango paper to `paper_table.*`.
        baselines: Cells that every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions for `confusion.*`; `None` omits the files.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        num_clips: Number of clips to draw on the page of a single run; their videos are decoded.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If there is no run, several runs have no output directory, a baseline or group
            does not exist, shards overlap, or runs have no question in common.
    """
    if not run_dirs or (len(run_dirs) > 1 and output is None):
        raise InputError(
            f"report of {len(run_dirs)} runs: name at least one run, and a directory to write to "
            "with --output when there are several"
        )
    found = compared_runs(
        run_dirs, baselines=baselines, on=on, across=output is not None, confusion=confusion
    )
    runs, cells, notes = found.runs, found.cells, list(found.notes)
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    if confusion is not None:
        write_confusion(cells, [run.reduction for run, _ in _pairs(runs)], confusion, folder)
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
    if len(runs) == 1 and runs[0].group.shards:  # write what the unsharded job would write
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
    """Summarise several runs."""
    reasons: dict[tuple[str, str], FailureReason] = {}
    for run in runs:
        for reason in run.reduction.measurements.failures():
            add_reason(reasons, reason)
    return RunsSummary(
        run_id=facts.run_id,
        kind=facts.kind,
        runs=tuple(facts.run_id for run in runs for facts in run.group.facts),
        note=facts.note,
        skipped=facts.skipped,
        counts=QuestionCounts.total(run.summary.counts for run in runs),
        cache=CacheCounts.total(run.summary.cache for run in runs),
        failures=FailureList.of(sorted_reasons(reasons.values())),
        cells=tuple(cells),
    )


def _facts(runs: Sequence[LoadedRun]) -> JobFacts:
    """Facts of all runs together."""
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


def write_tables(
    cells: Sequence[CellSummary], folder: Path, *, published: bool, notes: Sequence[str] = ()
) -> None:
    """Write `table.*`, `paper_table.*`, `grid.md` and `breakdowns.*`.

    `scores.*` is written if a benchmark has several metrics, and `differences_by_group.csv` if
    cells were compared with the unpruned baseline `full`.

    Args:
        cells: Cells of one run or of several.
        folder: Receives the files.
        published: Add the numbers of the Tango paper to `paper_table.*`.
        notes: Sentences to print under `table.*` and `paper_table.*`.
    """
    paper = paper_table(cells, published=published, notes=notes)
    texts = {
        "table.md": "\n\n".join([cells_markdown(cells), *markdown_notes(notes)]) + "\n",
        "table.csv": cells_csv(cells),
        "table.tex": "\n".join([cells_latex(cells), *latex_notes(notes)]) + "\n",
        "paper_table.md": paper.markdown() + "\n",
        "paper_table.csv": paper.csv(),
        "paper_table.tex": paper.latex() + "\n",
        "grid.md": grid_markdown(cells) + "\n",
        "breakdowns.md": breakdowns_markdown(cells) + "\n",
        "breakdowns.csv": breakdowns_csv(cells),
    }
    if any(len(cell.scores) > 1 for cell in cells):
        texts |= {"scores.md": all_scores(cells).markdown() + "\n", "scores.csv": scores_csv(cells)}
    if differences := differences_csv(cells):
        texts["differences_by_group.csv"] = differences
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_confusion(
    cells: Sequence[CellSummary], reductions: Sequence[Reduction], group: str, folder: Path
) -> None:
    """Write `confusion.md` and `confusion.csv`.

    Args:
        cells: Cells of one run or of several.
        reductions: Per cell, the answers of its run.
        group: Group of the questions.
        folder: Receives the files.

    Raises:
        ValueError: As `confusion_table`.
    """
    table = confusion_table(cells, reductions, group)
    markdown = confusion_markdown(table, group)
    (folder / "confusion.md").write_text(markdown + "\n", encoding="utf-8")
    (folder / "confusion.csv").write_text(table.csv(), encoding="utf-8")
