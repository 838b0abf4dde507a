"""Differences to all tokens by group of the questions, in long form."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.report.formatting import csv_text
from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import families_of

_HEADER = (
    "run_id",
    "model",
    "benchmark",
    "cell",
    "method",
    "retention",
    "metric",
    "group",
    "value",
    "num_questions",
    "num_clips",
    "num_gained",
    "num_lost",
    "difference",
    "difference_low",
    "difference_high",
    "too_few_clips",
    "p_value",
    "num_comparisons",
    "p_value_holm",
)


def differences_csv(cells: Sequence[CellSummary]) -> str:
    """Every difference by group, unrounded, as shares.

    `p_value_holm` is corrected for the `num_comparisons` of the row's benchmark, metric and group.
    An interval with `too_few_clips` is wider than it need be.
    """
    rows: list[list[object]] = []
    for family in families_of(cells):
        for member in family.members:
            cell, paired = member.cell, member.paired
            rows.append(
                [
                    cell.run_id,
                    cell.model,
                    cell.benchmark,
                    cell.name,
                    cell.method,
                    cell.retention_requested,
                    family.metric,
                    family.group,
                    member.value,
                    paired.num_questions,
                    paired.num_clips,
                    paired.num_gained,
                    paired.num_lost,
                    paired.difference,
                    paired.low,
                    paired.high,
                    paired.too_few_clips,
                    paired.p_value,
                    len(family.members),
                    member.p_value,
                ]
            )
    return csv_text(_HEADER, rows) if rows else ""
