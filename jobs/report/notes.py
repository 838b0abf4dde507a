"""Sentences printed below a table: what a reader must know besides its figures."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts


def few_clips_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Benchmarks with differences that have no interval, because too few clips changed."""
    few: dict[str, list[int]] = {}
    for cell in cells:
        for versus in (cell.versus_full, *cell.versus.values()):
            if versus and versus.paired and versus.paired.too_few_clips:
                few.setdefault(cell.benchmark, []).append(versus.paired.num_changed_clips)
    if not few:
        return []
    counts = ", ".join(
        f"{min(found)} to {max(found)} clips of {name}" for name, found in few.items()
    )
    return [f"Too few clips changed for an interval of some differences: {counts}."]


def skipped_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Methods of the recipes that are in no table, because the model cannot run them."""
    sentences = (
        f"Skipped on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    )
    return list(dict.fromkeys(sentences))
