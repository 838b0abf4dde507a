"""Methods down, retentions across: how accuracy and differences change with the share kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.report.tables.cells import (
    DASH,
    baseline_names,
    change,
    markdown_lines,
    p_value,
    percent,
    series_name,
    shared_parts,
)
from jobs.results.summary import BASELINE

Cell = dict[str, Any]


def grid_markdown(cells: Sequence[Cell]) -> str:
    """Markdown tables per run and benchmark: accuracy, and the difference to every baseline.

    Args:
        cells: Flat summaries, with `versus` where they were compared with more than `full`.
    """
    parts = shared_parts(cells)
    return "\n\n".join(
        _section(part, [cell for cell, own in zip(cells, parts, strict=True) if own == part])
        for part in dict.fromkeys(parts)
    )


def _section(title: str, cells: Sequence[Cell]) -> str:
    """The tables of one run and benchmark."""
    texts = [f"## {title}"] if title else []
    texts.append("### Accuracy %, in brackets % of the tokens really kept")
    texts.append(_table(cells, [_accuracy(cell) for cell in cells]))
    for name in (BASELINE, *baseline_names(cells)):
        if any(_versus(cell, name) for cell in cells):
            texts.append(f"### Difference to `{name}` in points, its 95 % interval, McNemar's p")
            texts.append(_table(cells, [_difference(_versus(cell, name)) for cell in cells]))
    return "\n\n".join(texts)


def _table(cells: Sequence[Cell], texts: Sequence[str]) -> str:
    """One table of a text per cell; lines and columns without any are left out."""
    lines: dict[str, dict[float, str]] = {}
    for cell, text in zip(cells, texts, strict=True):
        if text != DASH:
            lines.setdefault(series_name(cell), {})[cell["retention_requested"]] = text
    retentions = sorted({share for line in lines.values() for share in line})
    header = ["method", *(f"{100 * share:g} %" for share in retentions)]
    rows = [
        [name, *(line.get(share, DASH) for share in retentions)] for name, line in lines.items()
    ]
    return markdown_lines(header, rows)


def _accuracy(cell: Cell) -> str:
    """Accuracy and the share kept, averaged over the layers."""
    return f"{percent(cell['accuracy'])} ({percent(cell['equivalent_retention'])})"


def _versus(cell: Cell, name: str) -> dict[str, Any] | None:
    """The comparison with one baseline."""
    versus: dict[str, Any] = {BASELINE: cell["versus_full"], **cell.get("versus", {})}
    return versus.get(name)


def _difference(versus: dict[str, Any] | None) -> str:
    """A difference with its interval and p."""
    if versus is None or "difference" not in versus:
        return DASH
    p = p_value(versus["p_value"])
    return f"{change(versus)}, p{p if p.startswith('<') else f'={p}'}"
