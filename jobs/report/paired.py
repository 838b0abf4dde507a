"""Runs read and paired: what every comparison of runs begins with, on paper or on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.report.common import (
    On,
    common_questions,
    question_notes,
    raise_if_none,
    shown_notes,
)
from jobs.report.controls import right_wrong
from jobs.report.notes import (
    answers_in,
    few_clips_notes,
    incomplete_group_notes,
    lost_answers_notes,
    skipped_notes,
)
from jobs.report.shards import RunGroup, grouped
from jobs.report.tables.confusion import Confusions
from jobs.results.against_controls import RightWrong
from jobs.results.baselines import full_index, unpaired_notes, with_baselines
from jobs.results.cell_summary import CellSummary
from jobs.results.compared import compare_cells
from jobs.results.facts import JobFacts
from jobs.results.quantities import Comparison
from jobs.results.readings import are_ranked, rule_notes, unread_notes
from jobs.results.reduction import Reduction, questions_asked, reduce_runs
from jobs.results.run_summary import RunSummary
from jobs.results.summary import summarize_reduced
from pipeline.progress.parts import Digests


@dataclass(frozen=True)
class LoadedRun:
    """One run, or the shards of one job, with everything a comparison reads of it."""

    group: RunGroup
    facts: JobFacts
    reduction: Reduction
    summary: RunSummary
    confusions: Confusions | None


# A cell and the run it is of.
_Pair = tuple[LoadedRun, CellSummary]


@dataclass(frozen=True)
class ComparedRuns:
    """Several runs, or one, with every comparison made.

    Attributes:
        runs: The runs; shards of one job are one.
        cells: All cells of all runs, in order.
        notes: Sentences that belong below their table.
    """

    runs: tuple[LoadedRun, ...]
    cells: tuple[CellSummary, ...]
    notes: tuple[str, ...]

    def answers(self, index: int) -> RightWrong:
        """What a cell answered."""
        run, cell = _pairs(self.runs)[index]
        return right_wrong(run.reduction, cell)


def compared_runs(
    run_dirs: Sequence[Path],
    *,
    baselines: Sequence[str] = (),
    confusion: str | None = None,
    on: On = "common",
    across: bool = True,
) -> ComparedRuns:
    """Read runs and compare their cells; nothing is written.

    Args:
        run_dirs: Finished runs; shards of one job become one.
        baselines: What every cell is compared with besides `full`; see `with_baselines`.
        confusion: Group of the questions whose confusions are counted; `None` for none.
        on: `"common"`, or `"all"` to let every run count all of its questions.
        across: Whether cells are compared with `full` of another run if theirs has none.

    Raises:
        FileNotFoundError: If a directory is not a run or holds no answers.
        ValueError: If a baseline or group is not there, shards overlap, or runs have no question
            in common.
    """
    groups = grouped(run_dirs)
    about_questions, only = _common(groups, on)
    runs = tuple(_load(group, only, confusion) for group in groups)
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
    """Every cell with its run."""
    return [(run, cell) for run in runs for cell in run.summary.cells]


def _common(groups: Sequence[RunGroup], on: On) -> tuple[list[str], Mapping[str, Digests] | None]:
    """What to say about questions that not all runs were asked, and which ones count.

    Raises:
        ValueError: If runs have no question in common, or shards have some.
    """
    if len(groups) == 1 and not groups[0].shards:
        return [], None
    asked, lost = [], []
    for group in groups:
        parts = [questions_asked(folder) for folder in group.folders]
        facts, union = group.merged_facts(), group.union(parts)
        asked.append((facts.run_id, union))
        # A part holds all answers about its clips, so a lost one takes questions with it.
        found = sum(len(union.get(cell.benchmark, ())) for cell in facts.cells)
        lost += lost_answers_notes(facts, found, group.folders)
    common = common_questions(asked)
    if on == "common":
        raise_if_none(asked, common)
    return [*lost, *question_notes(asked, common, on)], common if on == "common" else None


def _load(group: RunGroup, only: Mapping[str, Digests] | None, confusion: str | None) -> LoadedRun:
    """Read and summarise one run, or the shards of one job."""
    facts = group.merged_facts()
    counted = None if confusion is None else Confusions(confusion)
    readers = [] if counted is None else [counted]
    reduction = reduce_runs(group.folders, facts.mode, only=only, readers=readers)
    return LoadedRun(group, facts, reduction, summarize_reduced(reduction, facts), counted)


def _paired_cells(pairs: Sequence[_Pair]) -> list[CellSummary]:
    """All cells, each with its comparison with all tokens.

    A cell is compared with `full` of its own run, or else with the one that `full_index` finds
    among all runs. Questions that only one of the two was asked do not count.
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
    # Latencies may be compared only if both were measured in profile mode on equal devices.
    profile = run.facts.mode == "profile" == other_run.facts.mode
    return compare_cells(
        ours,
        cell.name,
        theirs,
        other_cell.name,
        profile=profile and run.facts.device == other_run.facts.device,
    )
