"""Sentences printed below a table: what a reader must know besides its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts
from jobs.results.headlines import counted_unit, metric_title


def few_clips_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Benchmarks with differences that have no interval, because too few clips changed."""
    few: dict[str, list[int]] = {}
    for cell in cells:
        for versus in (cell.versus_full, *cell.versus.values()):
            if versus and versus.paired and versus.paired.too_few_clips:
                few.setdefault(cell.benchmark, []).append(versus.paired.num_changed_clips)
    if not few:
        return []
    counts = ", ".join(f"{_span(found)} of {name}" for name, found in few.items())
    return [f"Too few clips changed for an interval of some differences: {counts}."]


def _span(counts: Sequence[int]) -> str:
    """Smallest and largest of some numbers of clips, once where they are the same."""
    low, high = min(counts), max(counts)
    span = f"{low}" if low == high else f"{low} to {high}"
    return f"{span} clip{'' if high == 1 and low == high else 's'}"


def incomplete_group_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Benchmarks with groups of questions that have no score, because some were not asked."""
    sentences = []
    for cell in cells:
        found = cell.headline
        if counted_unit(cell) != "group":
            continue
        missing = cell.counts.num_clips - (found.num_questions if found else 0)
        if missing > 0:
            sentences.append(
                f"{missing:,} of {cell.counts.num_clips:,} groups of {cell.benchmark} are "
                "incomplete, as not all of their questions were asked; they are in no "
                f"{metric_title(cell)}."
            )
    return list(dict.fromkeys(sentences))


def answers_in(cells: Iterable[CellSummary]) -> int:
    """Answers of all cells, failed ones included."""
    return sum(cell.counts.num_questions for cell in cells)


def lost_answers_notes(facts: JobFacts, num_found: int, folders: Sequence[Path]) -> list[str]:
    """Answers that a run had when it ended, and that its files do not hold any more.

    Args:
        facts: Of one run, or of the shards of one job together.
        num_found: Answers in the files.
        folders: Run directories.
    """
    if facts.num_answers is None or num_found >= facts.num_answers:
        return []
    return [
        f"Answers are lost: the files of {', '.join(map(str, folders))} hold {num_found} of "
        f"{facts.num_answers}, and every figure is over what is left; --resume asks the others "
        "again."
    ]


def skipped_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Methods of the recipes that are in no table, because the model cannot run them."""
    sentences = (
        f"Skipped on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    )
    return list(dict.fromkeys(sentences))
