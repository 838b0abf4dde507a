"""The table that papers on token pruning print: methods x retentions down, benchmarks across.

Avg. is the mean of the benchmarks' overall accuracies, Perf. the share of the Avg. that the same
model has with all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.report.tables.paper_layout import (
    AVERAGE,
    SHARE,
    PaperRow,
    PaperTable,
    Values,
    paper_column,
)
from jobs.results.published import caveats, published_scores
from jobs.results.summary import BASELINE

HARNESSES = ("vlmevalkit", "lmms_eval")

_Setup = tuple[str, Any, str | None]
# Setup; how many cells of the same name come before; name of the cell.
_Key = tuple[_Setup, int, str]


def paper_table(
    cells: Sequence[Mapping[str, Any]], *, published: bool = False, notes: Sequence[str] = ()
) -> PaperTable:
    """Arrange the cells of any runs in the layout of papers.

    Cells of one model and method on several benchmarks share a row, whatever run they are from, if
    their protocols are of one harness. A cell that occurs twice (another run of the same) begins
    another row.

    Args:
        cells: Flat summaries with `model`, `num_frames` and `run_id`.
        published: Set the paper's numbers beside the measured ones.
        notes: Sentences to print below the table.
    """
    cells = _with_setups(cells)
    columns = _columns(cells)
    overall = [column for column in columns if column[1] == "overall"]
    several = len({cell.get("num_frames") for cell in cells}) > 1
    keys: dict[_Key, dict[str, Mapping[str, Any]]] = {}
    for cell in cells:
        copy = 0
        while cell["benchmark"] in keys.get((_setup(cell), copy, cell["cell"]), {}):
            copy += 1
        keys.setdefault((_setup(cell), copy, cell["cell"]), {})[str(cell["benchmark"])] = cell
    rows = {
        key: _row(list(own.values()), overall, several, key[1], published)
        for key, own in keys.items()
    }
    for (setup, copy, _), row in rows.items():
        full = _full(rows, keys, setup, copy) or _full(rows, keys, setup, 0)
        row.values[SHARE] = _share(row.values, full.values if full else {})
        row.published[SHARE] = _share(row.published, full.published if full else {})
    order = list(dict.fromkeys(key[0] for key in rows))
    ranked = sorted(
        rows,
        key=lambda key: (
            order.index(key[0]),
            _method(keys[key]) != BASELINE,
            rows[key].retention,
        ),
    )
    for row in rows.values():
        row.published = {key: value for key, value in row.published.items() if value is not None}
    return PaperTable(
        (*columns, AVERAGE, SHARE),
        tuple(rows[key] for key in ranked),
        with_published=published,
        notes=(*notes, *(caveats(cells) if published else ())),
    )


def _with_setups(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Cells with their harness; what one does not know is what all others of its model have.

    Answers from elsewhere do not know their frames, and our own benchmarks have no harness.
    """
    cells = [{**cell, "harness": _harness(cell)} for cell in cells]
    known: dict[Any, set[Any]] = {}
    for cell in cells:
        for field in ("num_frames", "harness"):
            known.setdefault((cell["model"], field), set()).add(cell.get(field))

    def only(model: Any, field: str) -> Any:
        found = known[model, field] - {None}
        return next(iter(found)) if len(found) == 1 else None

    return [
        {
            **cell,
            "num_frames": cell.get("num_frames") or only(cell["model"], "num_frames"),
            "harness": cell["harness"] or only(cell["model"], "harness"),
        }
        for cell in cells
    ]


def _harness(cell: Mapping[str, Any]) -> str | None:
    """Whose prompts, frames and scores a cell has; `None` for nobody's, or if unknown."""
    protocol = str(cell.get("protocol") or "")
    return next((name for name in HARNESSES if protocol.startswith(name)), None)


def _setup(cell: Mapping[str, Any]) -> _Setup:
    """Model, frames and harness: rows that differ in them have nothing in common."""
    return str(cell["model"]), cell["num_frames"], cell["harness"]


def _columns(cells: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The benchmarks of the table, those of the papers first, with their columns."""
    found = {str(cell["benchmark"]) for cell in cells}
    ordered = sorted(found, key=lambda name: (paper_column(name).order, name))
    return tuple(
        (name, column) for name in ordered for column in (*paper_column(name).values, "overall")
    )


def _row(
    own: Sequence[Mapping[str, Any]],
    overall: Sequence[tuple[str, str]],
    several: bool,
    copy: int,
    published: bool,
) -> PaperRow:
    """One row from the cells of one method; the Avg. needs all benchmarks of the table."""
    first = own[0]
    frames = first.get("num_frames")
    shares = [c["equivalent_retention"] for c in own if c["equivalent_retention"] is not None]
    words = [word for word in str(first["cell"]).split(" ") if not word.startswith("r=")]
    row = PaperRow(
        model=f"{first['model']}, {frames} frames" if several and frames else str(first["model"]),
        protocol=first["harness"] or "",
        method=" ".join(words) + (f" ({first.get('run_id')})" if copy else ""),
        retention=first["retention_requested"],
        kept=sum(shares) / len(shares) if shares else None,
    )
    for cell in own:
        name = str(cell["benchmark"])
        row.values[name, "overall"] = cell["accuracy"]
        own_columns = paper_column(name)
        for part in own_columns.values:
            entry = cell["accuracy_by"].get(own_columns.group, {}).get(part)
            row.values[name, part] = entry["accuracy"] if entry else None
    if published:
        for name, columns in published_scores(first).items():
            row.published |= {(name, column): score for column, score in columns.items()}
    row.values[AVERAGE] = _mean(row.values, overall)
    row.published[AVERAGE] = _mean(row.published, overall)
    return row


def _full(
    rows: Mapping[_Key, PaperRow],
    keys: Mapping[_Key, Mapping[str, Mapping[str, Any]]],
    setup: _Setup,
    copy: int,
) -> PaperRow | None:
    """The row with all tokens of the same model under the same protocol."""
    return next(
        (
            row
            for key, row in rows.items()
            if key[:2] == (setup, copy) and _method(keys[key]) == BASELINE
        ),
        None,
    )


def _method(own: Mapping[str, Mapping[str, Any]]) -> str:
    """Method of the cells of a row."""
    return str(next(iter(own.values()))["method"])


def _mean(values: Values, columns: Sequence[tuple[str, str]]) -> float | None:
    """Mean of some columns; `None` unless all are known."""
    known = [value for value in map(values.get, columns) if value is not None]
    return sum(known) / len(known) if known and len(known) == len(columns) else None


def _share(values: Values, full: Values) -> float | None:
    """Avg. as a share of the Avg. with all tokens."""
    ours, theirs = values.get(AVERAGE), full.get(AVERAGE)
    return ours / theirs if ours is not None and theirs else None
