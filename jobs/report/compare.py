"""Compare several runs: one table, one page, paired tests across runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from jobs.report.gallery import gallery
from jobs.report.page import Contents, render_html, viewer_of
from jobs.report.shards import RunGroup, grouped, merged
from jobs.report.tables.breakdowns import breakdown_files, confusion_markdown, confusion_table
from jobs.report.tables.cells import CONTROLS_CAPTION, cell_files, control_sentences, controls_table
from jobs.report.tables.paper import paper_table
from jobs.results import quantities
from jobs.results.answer_columns import Keys
from jobs.results.baselines import full_index, unpaired_notes, with_baselines
from jobs.results.cell_summary import CellSummary, RunSummary
from jobs.results.comparisons import against_controls
from jobs.results.facts import FACTS_FILE, JOB_FILE, JobFacts
from jobs.results.measurements import failures_of
from jobs.results.outcomes import Outcomes, compare_cells
from jobs.results.summary import (
    Reduction,
    questions_asked,
    reduce_runs,
    save_summary,
    summarize_reduced,
    tables_of,
)
from tango_core.errors import InputError

REPORT_FILE = "report.html"

On = Literal["common", "all"]


@dataclass(frozen=True)
class LoadedRun:
    """One run, or the shards of one job, loaded for a comparison."""

    group: RunGroup
    reduction: Reduction
    summary: RunSummary


# A cell before it was compared with others, and its run.
_Pair = tuple[LoadedRun, CellSummary]


@dataclass(frozen=True)
class ComparedRuns:
    """One or several runs with all comparisons of their cells.

    Attributes:
        runs: The runs; shards of one job count as one run.
        pairs: Every cell before it was compared with others, and its run.
        cells: All cells of all runs, in order.
        notes: Notes to print below the table.
        only: Questions that count, by benchmark; see `tables_of`.
    """

    runs: tuple[LoadedRun, ...]
    pairs: tuple[_Pair, ...]
    cells: tuple[CellSummary, ...]
    notes: tuple[str, ...]
    only: Mapping[str, Keys] | None

    def answers(self, index: int) -> pd.DataFrame:
        """Answers of a cell that count in the headline metric; see `Answers`."""
        run, cell = self.pairs[index]
        outcomes = run.reduction.outcomes.get(cell.benchmark) or Outcomes(cell.benchmark)
        counts, values = outcomes.count(outcomes.metrics[0], cell.name)
        asked = outcomes.asked[["key", "clip"]].assign(score=values)
        return asked[counts].set_index("key")

    def summary_and_facts(self) -> tuple[RunSummary, JobFacts]:
        """Summary and facts of all runs together; merged shards have those of the whole job."""
        runs, every = self.runs, [run.group.facts for run in self.runs]
        if len(runs) == 1 and runs[0].group.shards:
            return replace(runs[0].summary, cells=self.cells), every[0]
        facts = merged(
            every,
            run_id=f"comparison of {len(runs)} runs",
            kind="comparison",
            cells=tuple(cell for facts in every for cell in facts.cells),
            mode=every[0].mode if len({facts.mode for facts in every}) == 1 else "throughput",
            started_at="",
            note=" ".join(dict.fromkeys(facts.note for facts in every if facts.note)),
            peak_gib=None,
        )
        named = ("run_id", "kind", "model", "mode", "note", "skipped")
        summary = RunSummary(
            **{name: getattr(facts, name) for name in named},
            runs=tuple(facts.run_id for run in runs for facts in run.group.parts),
            counts=quantities.QuestionCounts.total(run.summary.counts for run in runs),
            cache=quantities.CacheCounts.total(run.summary.cache for run in runs),
            failures=failures_of(run.reduction.measurements for run in runs),
            cells=self.cells,
        )
        return summary, facts


def compared_runs(
    run_dirs: Sequence[Path],
    *,
    baselines: Sequence[str] = (),
    on: On = "common",
    across: bool = True,
) -> ComparedRuns:
    """Read runs and compare their cells; nothing is written.

    Args:
        run_dirs: Finished runs; shards of one job are merged.
        baselines: Cells that every cell is compared with besides `full`; see `with_baselines`.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        across: Whether cells are compared with `full` of another run if their own run has none.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If a baseline or group does not exist, shards overlap, or runs have no question
            in common.
    """
    groups = grouped(run_dirs)
    about_questions, only = _common(groups, on)
    runs = []
    for group in groups:
        reduction = reduce_runs(group.folders, group.facts.mode, only=only)
        runs.append(LoadedRun(group, reduction, summarize_reduced(reduction, group.facts)))
    pairs = tuple((run, cell) for run in runs for cell in run.summary.cells)
    cells = [cell for _, cell in pairs]
    for index, cell in enumerate(cells):
        other = full_index(index, cells) if across and cell.versus_full is None else None
        if other is not None and not cell.is_baseline:
            cells[index] = replace(cell, versus_full=_compare(pairs[index], pairs[other]))
    cells = with_baselines(cells, baselines, lambda one, other: _compare(pairs[one], pairs[other]))
    notes = (
        *(note for run in runs for note in run.group.notes(run.reduction.num_answers)),
        *about_questions,
        *cell_notes(cells, [group.facts for group in groups]),
    )
    return ComparedRuns(tuple(runs), pairs, tuple(cells), notes, only)


def _common(groups: Sequence[RunGroup], on: On) -> tuple[list[str], Mapping[str, Keys] | None]:
    """Notes about questions that not all runs have, and the questions to compare on.

    Raises:
        InputError: If runs have no question in common, or shards have common questions.
    """
    notes: list[str] = []
    if len(groups) == 1 and not groups[0].shards:
        return notes, None
    asked = {group.facts.run_id: group.union(questions_asked) for group in groups}
    only: dict[str, Keys] = {}
    for benchmark in dict.fromkeys(name for own in asked.values() for name in own):
        parts = {name: own[benchmark] for name, own in asked.items() if benchmark in own}
        common = reduce(np.intersect1d, parts.values())
        if on == "common" and not len(common):
            raise InputError(
                f"--on common: {', '.join(parts)} have no question of {benchmark} in common; "
                "--on all sets them side by side"
            )
        if all(len(part) == len(common) for part in parts.values()):
            continue
        only[benchmark] = common
        if on == "common":
            left_out = ", ".join(f"{len(k) - len(common):,} of {n}" for n, k in parts.items())
            notes.append(
                f"Compared on the {len(common):,} questions of {benchmark} that all {len(parts)} "
                f"runs were asked; left out: {left_out}."
            )
        else:
            listed = ", ".join(f"{len(keys):,} in {name}" for name, keys in parts.items())
            notes.append(
                f"The runs were asked different questions of {benchmark}: {listed}; "
                f"{len(common):,} are in all of them. Accuracies of different questions are no "
                "comparison, and Perf. % is left out between them; --on common compares on common "
                "questions."
            )
    return notes, only if on == "common" else None


def _compare(pair: _Pair, other: _Pair) -> quantities.Comparison | None:
    """The paired comparison of two cells."""
    (run, cell), (other_run, other_cell) = pair, other
    ours, theirs = (one.reduction.outcomes.get(cell.benchmark) for one in (run, other_run))
    if ours is None or theirs is None:
        return None
    # Latencies are comparable only if both were measured in profile mode on equal devices.
    facts, other_facts = run.group.facts, other_run.group.facts
    modes, devices = ({getattr(f, n) for f in (facts, other_facts)} for n in ("mode", "device"))
    profile = modes == {"profile"} and len(devices) == 1
    return compare_cells(ours, cell.name, theirs, other_cell.name, profile=profile)


def cell_notes(cells: Sequence[CellSummary], runs: Iterable[JobFacts]) -> list[str]:
    """Limits of the numbers of some cells.

    Args:
        cells: Cells of one run or of several.
        runs: Facts of the runs.
    """
    skipped = [
        f"Skipped on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    ]
    return [*dict.fromkeys(skipped), *quantities.unread_notes(cells), *unpaired_notes(cells)]


def write_report(run_dir: Path) -> RunSummary:
    """Write `summary.json`, `plots/*.png` and `report.html` of a run from its directory alone.

    Args:
        run_dir: Holds `job.yaml`, `facts.json` and `answers/*.parquet`.

    Raises:
        FileNotFoundError: If the directory is not a run or holds no answers.
    """
    found = compared_runs([run_dir], across=False)
    save_summary(found.runs[0].summary, run_dir)
    _write_page(found, run_dir, several=False)
    return found.runs[0].summary


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
    found = compared_runs(run_dirs, baselines=baselines, on=on, across=output is not None)
    folder = output or run_dirs[0]
    folder.mkdir(parents=True, exist_ok=True)
    if confusion is not None:
        runs = [tables_of(run.group.folders, found.only) for run in found.runs]
        table = confusion_table(found.cells, runs, confusion)
        _write(folder, "confusion.md", confusion_markdown(table, confusion))
        _write(folder, "confusion.csv", table.csv())
    paper = paper_table(found.cells, published=published, notes=found.notes)
    texts = {
        **cell_files(found.cells, found.notes),
        "paper_table.md": paper.markdown(),
        "paper_table.csv": paper.csv(),
        "paper_table.tex": paper.latex(),
        **breakdown_files(found.cells),
    }
    for name, text in texts.items():
        _write(folder, name, text)
    several = output is not None
    summary = found.summary_and_facts()[0] if several else found.runs[0].summary
    save_summary(summary, folder)
    clips = [] if several else gallery(folder, found.cells, num_clips)
    return _write_page(found, folder, clips, several=several)


def _write_page(
    found: ComparedRuns, folder: Path, clips: Sequence[str] = (), *, several: bool
) -> Path:
    """Write the page with its plots, and `controls.md` if there is a control."""
    ranked = quantities.are_ranked(found.cells)
    controlled = against_controls(found.cells, found.answers) if ranked else ()
    if controlled:
        table = controls_table(controlled).markdown()
        parts = [*control_sentences(controlled), table, CONTROLS_CAPTION]
        _write(folder, "controls.md", "\n\n".join(parts))
    if several:
        summary, facts = found.summary_and_facts()
    else:
        summary, facts = (
            replace(found.runs[0].summary, cells=found.cells),
            found.runs[0].group.facts,
        )
    files = {
        f"{own.run_id}/{name}" if several else name: (run_dir / name).read_text()
        for run in found.runs
        for run_dir, own in zip(run.group.folders, run.group.parts, strict=True)
        for name in (JOB_FILE, FACTS_FILE)
        if (run_dir / name).is_file()
    }
    viewer = "" if several else viewer_of(folder)
    about = (summary, facts, files, found.notes, clips, viewer, found.answers, controlled)
    page = render_html(Contents(*about), folder / "plots")
    _write(folder, REPORT_FILE, page)
    return folder / REPORT_FILE


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
