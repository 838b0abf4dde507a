"""Confusion of options: correct option and reply, by a group such as the question type."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from jobs.report.formatting import Table, markdown_text
from jobs.report.tables.cells import labels
from jobs.results.cell_summary import CellSummary
from jobs.results.reduction import Reduction
from tango_core.errors import InputError

NO_OPTION = "no option"
_SHOWN = 3
_KEYS = ["cell", "value", "right", "reply"]


def confusion_table(
    cells: Sequence[CellSummary], reductions: Sequence[Reduction], group: str
) -> pd.DataFrame:
    """Count every pair of correct option and reply, including correct replies.

    A failed answer, or a reply without an option, counts as `no option`.

    Args:
        cells: Cells of one run or of several.
        reductions: Per cell, the answers of its run.
        group: Group of the questions, e.g. `"type"`.

    Returns:
        Columns `cell`, `value` (of the group), `right`, `reply` and `count`; in the order of
        `cells`, then by value and decreasing count.

    Raises:
        ValueError: If no question has the group, or a run has not recorded option texts.
    """
    known: set[str] = set()
    rows: list[tuple[object, ...]] = []
    for label, cell, reduction in zip(labels(cells), cells, reductions, strict=True):
        if cell.benchmark not in reduction.outcomes:
            continue
        if not reduction.table.has_option_texts:
            raise InputError(
                f"the answers of {cell.name!r} hold no texts of options: they were written by an "
                "earlier version; run it again for --confusion"
            )
        sets = reduction.outcomes[cell.benchmark].groups
        known.update(name for one in sets for name in one)
        values = [one.get(group) for one in sets]
        found = reduction.table.confusions(cell.benchmark, cell.name, values)
        own = [(v, right, reply or NO_OPTION, n) for (v, right, reply), n in found.items()]
        rows += [(label, *one) for one in sorted(own, key=lambda it: (it[0], -it[3], it[1:3]))]
    if group not in known:
        raise InputError(
            f"--confusion {group!r} is no group of these questions; choose one of: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return pd.DataFrame(rows, columns=[*_KEYS, "count"])


def confusion_markdown(table: pd.DataFrame, group: str) -> str:
    """One row per cell, one column per value: number wrong, and the most frequent mistakes.

    Args:
        table: Result of `confusion_table`.
        group: Name of the group for the heading.
    """
    values = sorted(table["value"].unique())
    rows = []
    for name in table["cell"].unique():
        own = table[table["cell"] == name]
        rows.append([str(name), *(_entry(own[own["value"] == value]) for value in values)])
    title = markdown_text(group)
    text = f"Wrong of asked by `{title}`; the {_SHOWN} most frequent mistakes, right → reply."
    return f"{text}\n\n{Table(['cell', *values], rows).markdown()}"


def _entry(pairs: pd.DataFrame) -> str:
    """A cell's mistakes on the questions with one value."""
    wrong = pairs[pairs["right"] != pairs["reply"]]
    counts = f"{wrong['count'].sum()} of {pairs['count'].sum()}"
    first = wrong.head(_SHOWN)
    mistakes = [
        f"{right} → {reply} {count}"
        for right, reply, count in zip(first["right"], first["reply"], first["count"], strict=True)
    ]
    return f"{counts}: {', '.join(mistakes)}" if mistakes else counts
