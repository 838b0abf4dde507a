"""Confusion of options: correct option and reply, by a group such as the question type."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.report.formatting import Table, markdown_text
from jobs.report.tables.cells import labels
from jobs.results.cell_summary import CellSummary
from jobs.results.reduction import Reduction
from tango_core.errors import InputError

NO_OPTION = "no option"
_SHOWN = 3


def confusion_table(
    cells: Sequence[CellSummary], reductions: Sequence[Reduction], group: str
) -> Table:
    """Count every pair of correct option and reply, including correct replies.

    A failed answer, or a reply without an option, counts as `no option`.

    Args:
        cells: Cells of one run or of several.
        reductions: Per cell, the answers of its run, reduced with this group as `confusion`.
        group: Group of the questions, e.g. `"type"`.

    Returns:
        Columns `cell`, `value` (of the group), `right`, `reply` and `count`; in the order of
        `cells`, then by value and decreasing count.

    Raises:
        ValueError: If no question has the group, or a run has not recorded option texts.
    """
    known: set[str] = set()
    rows: list[tuple[str, str, str, str, int]] = []
    for label, cell, reduction in zip(labels(cells), cells, reductions, strict=True):
        if cell.benchmark not in reduction.outcomes:
            continue
        if not reduction.measurements.has_option_texts:
            raise InputError(
                f"the answers of {cell.name!r} hold no texts of options: they were written by an "
                "earlier version; run it again for --confusion"
            )
        known.update(name for one in reduction.outcomes[cell.benchmark].groups for name in one)
        found = reduction.measurements.confusions[cell.benchmark, cell.name]
        own = [(v, right, reply or NO_OPTION, n) for (v, right, reply), n in found.items()]
        rows += [(label, *one) for one in sorted(own, key=lambda it: (it[0], -it[3], it[1:3]))]
    if group not in known:
        raise InputError(
            f"--confusion {group!r} is no group of these questions; choose one of: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    return Table(("cell", "value", "right", "reply", "count"), rows)


def confusion_markdown(table: Table, group: str) -> str:
    """One row per cell, one column per value: number wrong, and the most frequent mistakes.

    Args:
        table: Result of `confusion_table`.
        group: Name of the group for the heading.
    """
    values = sorted({row[1] for row in table.rows})
    entries: dict[str, dict[str, list[tuple[str, str, int]]]] = {}
    for cell, value, *pair in table.rows:
        entries.setdefault(cell, {}).setdefault(value, []).append(tuple(pair))
    rows = [[cell, *(_entry(own.get(v, [])) for v in values)] for cell, own in entries.items()]
    title = markdown_text(group)
    text = f"Wrong of asked by `{title}`; the {_SHOWN} most frequent mistakes, right → reply."
    return f"{text}\n\n{Table(['cell', *values], rows).markdown()}"


def _entry(pairs: Sequence[tuple[str, str, int]]) -> str:
    """A cell's mistakes on the questions with one value."""
    wrong = [(right, reply, count) for right, reply, count in pairs if right != reply]
    counts = f"{sum(count for *_, count in wrong)} of {sum(count for *_, count in pairs)}"
    mistakes = [f"{right} → {reply} {count}" for right, reply, count in wrong[:_SHOWN]]
    return f"{counts}: {', '.join(mistakes)}" if mistakes else counts
