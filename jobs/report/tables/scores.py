"""All metrics of benchmarks that have several: a row per cell and metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jobs.report.formatting import (
    DASH,
    csv_text,
    difference_with_interval,
    estimate_percent,
    interval,
    markdown_table,
    p_value,
)
from jobs.report.tables.labels import labels
from jobs.results.cell_summary import CellSummary, metric_title
from jobs.results.quantities import Comparison
from tango_core.metrics import Estimate

HEADER = ("cell", "metric", "%", "95 % interval", "n", "vs full", "p")
_CSV_HEADER = (
    "run_id",
    "model",
    "benchmark",
    "cell",
    "metric",
    "n",
    "value",
    "low",
    "high",
    "versus_full",
    "versus_full_low",
    "versus_full_high",
    "versus_full_p",
)


@dataclass(frozen=True)
class ScoreTable:
    """Names of the columns, and formatted rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def all_scores(cells: Sequence[CellSummary]) -> ScoreTable:
    """The table for readers; without rows where every benchmark has its headline alone."""
    rows = [
        (
            label,
            metric_title(cell, name),
            estimate_percent(found),
            interval(found, unknown=DASH),
            f"{found.num_questions:,}",
            difference_with_interval(versus),
            p_value(versus),
        )
        for label, cell in zip(labels(cells), cells, strict=True)
        if len(cell.scores) > 1
        for name, found, versus in _metrics(cell)
    ]
    return ScoreTable(HEADER, tuple(rows))


def scores_markdown(cells: Sequence[CellSummary]) -> str:
    """A GitHub-flavoured Markdown table of them."""
    table = all_scores(cells)
    return markdown_table(table.header, table.rows, text_columns=2)


def scores_csv(cells: Sequence[CellSummary]) -> str:
    """Every metric of every cell, unrounded, as shares; empty where there is no comparison."""
    rows: list[list[object]] = []
    for cell in cells:
        for name, found, versus in _metrics(cell):
            paired = versus.paired if versus else None
            rows.append(
                [
                    *(cell.run_id, cell.model, cell.benchmark, cell.name, name),
                    *(found.num_questions, found.value, found.low, found.high),
                    *(
                        (paired.difference, paired.low, paired.high, paired.p_value)
                        if paired
                        else [None] * 4
                    ),
                ]
            )
    return csv_text(_CSV_HEADER, rows)


def _metrics(cell: CellSummary) -> Iterator[tuple[str, Estimate, Comparison | None]]:
    """Every metric of a cell with its value and its comparison with all tokens."""
    versus = cell.versus_full
    for name, found in cell.scores.items():
        if versus is None or name == cell.metric:
            yield name, found, versus
        else:
            yield name, found, Comparison(versus.also.get(name))
