"""What metrics are called in headings, alone and where several stand together."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.results.cell_summary import CellSummary
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY

# Heading of a column whose rows have different metrics; their names stand beside the benchmarks.
SCORE = "score"


def metric_title(cell: CellSummary, metric: str = "") -> str:
    """What readers call a metric of a cell.

    Args:
        cell: The cell.
        metric: Name of the metric; "" for the headline.
    """
    name = metric or cell.metric
    titles = {one.name: one.title for one in facts_of(cell.benchmark).metrics}
    return titles.get(name, name)


def counted_unit(cell: CellSummary) -> str:
    """What has a value in a cell's headline: `question` or `group`."""
    units = {one.name: one.unit for one in facts_of(cell.benchmark).metrics}
    return units.get(cell.metric, "question")


def headline_title(cells: Sequence[CellSummary]) -> str:
    """What readers call the headline of all cells: its name, or `score` where they differ."""
    titles = {metric_title(cell) for cell in cells}
    return titles.pop() if len(titles) == 1 else SCORE if titles else ACCURACY.title


def have_one_headline(cells: Sequence[CellSummary]) -> bool:
    """Whether all cells have the same headline, so that their values are on one scale."""
    return len({cell.metric for cell in cells}) < 2
