"""Methods down, retentions across: how scores and differences change with the share kept."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.report.formatting import (
    DASH,
    detectable,
    difference_with_interval,
    estimate_percent,
    markdown_table,
    markdown_text,
    p_value,
    percent,
)
from jobs.report.tables.labels import baseline_names, shared_parts
from jobs.results.cell_summary import BASELINE, CellSummary, headline_title
from jobs.results.quantities import Comparison
from tango_core.metrics import ACCURACY


def grid_markdown(cells: Sequence[CellSummary]) -> str:
    """Markdown tables per run and benchmark: the headline, and its difference to every baseline."""
    parts = shared_parts(cells)
    return "\n\n".join(
        _section(part, [cell for cell, own in zip(cells, parts, strict=True) if own == part])
        for part in dict.fromkeys(parts)
    )


def _section(title: str, cells: Sequence[CellSummary]) -> str:
    """The tables of one run and benchmark."""
    texts = [f"## {markdown_text(title)}"] if title else []
    headline = headline_title(cells)
    headline = headline.capitalize() if headline == ACCURACY.title else headline
    texts.append(f"### {headline} %, in brackets % of the tokens really kept")
    texts.append(_table(cells, [_headline(cell) for cell in cells]))
    for name in (BASELINE, *baseline_names(cells)):
        if any(_versus(cell, name) for cell in cells):
            title = markdown_text(name)
            texts.append(f"### Difference to `{title}` in points, 95 % interval, p, detectable")
            texts.append(_table(cells, [_difference(_versus(cell, name)) for cell in cells]))
    return "\n\n".join(texts)


def _table(cells: Sequence[CellSummary], texts: Sequence[str]) -> str:
    """One table of a text per cell; rows and columns without any text are not shown."""
    by_method: dict[str, dict[float, str]] = {}
    for cell, text in zip(cells, texts, strict=True):
        if text != DASH:
            by_method.setdefault(cell.series, {})[cell.retention_requested] = text
    retentions = sorted({share for row in by_method.values() for share in row})
    header = ["method", *(f"{100 * share:g} %" for share in retentions)]
    rows = [
        [name, *(row.get(share, DASH) for share in retentions)] for name, row in by_method.items()
    ]
    return markdown_table(header, rows)


def _headline(cell: CellSummary) -> str:
    """The headline and the share kept, averaged over the layers."""
    return f"{estimate_percent(cell.headline)} ({percent(cell.equivalent_retention)})"


def _versus(cell: CellSummary, name: str) -> Comparison | None:
    """The comparison with one baseline."""
    return {BASELINE: cell.versus_full, **cell.versus}.get(name)


def _difference(versus: Comparison | None) -> str:
    """A difference with its interval, p, and the smallest true one that would have been found."""
    if versus is None or versus.paired is None:
        return DASH
    p = p_value(versus)
    p = p if p.startswith("<") else f"={p}"
    return f"{difference_with_interval(versus)}, p{p}, detectable {detectable(versus)}"
