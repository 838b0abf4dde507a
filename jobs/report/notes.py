"""Sentences printed below a table: what a reader must know besides its figures."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.results.cell_summary import CellSummary
from jobs.results.facts import JobFacts

FEW_CLIPS = 12
"""Up to so many clips, a bootstrap that draws clips gives intervals that are too narrow."""


def few_clips_notes(cells: Iterable[CellSummary]) -> list[str]:
    """Benchmarks of too few clips for the intervals of differences."""
    few = {
        (cell.benchmark, cell.counts.num_clips): None
        for cell in cells
        if cell.counts.num_clips <= FEW_CLIPS and (cell.versus_full or cell.versus)
    }
    if not few:
        return []
    counts = ", ".join(f"{count} of {name}" for name, count in few)
    return [f"Intervals of differences are too narrow with so few clips: {counts}."]


def skipped_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Methods of the recipes that are in no table, because the model cannot run them."""
    sentences = (
        f"Left out on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.skipped
    )
    return list(dict.fromkeys(sentences))
