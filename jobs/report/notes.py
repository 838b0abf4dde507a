"""What a reader of a table must know besides its figures, one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.results.facts import JobFacts

FEW_CLIPS = 12
"""Up to so many clips, a bootstrap that draws clips gives intervals that are too narrow."""


def few_clips_notes(cells: Iterable[Mapping[str, Any]]) -> list[str]:
    """Benchmarks of too few clips for the intervals of differences.

    Args:
        cells: Summaries of cells.
    """
    few = {
        (cell["benchmark"], cell["num_clips"]): None
        for cell in cells
        if cell["num_clips"] <= FEW_CLIPS and (cell["versus_full"] or cell.get("versus"))
    }
    if not few:
        return []
    counts = ", ".join(f"{count} of {name}" for name, count in few)
    return [f"Intervals of differences are too narrow with so few clips: {counts}."]


def left_out_notes(runs: Iterable[JobFacts]) -> list[str]:
    """Methods that recipes name and the tables do not hold, because the model cannot run them."""
    sentences = (
        f"Left out on {facts.model}: {entry.name}, retention {100 * entry.retention:g} %: "
        f"{entry.reason}."
        for facts in runs
        for entry in facts.left_out
    )
    return list(dict.fromkeys(sentences))
