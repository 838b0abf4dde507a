"""The table that papers on token pruning print: methods x retentions down, benchmarks across.

Avg. is the mean of the benchmarks' overall accuracies, Perf. the share of the Avg. that the same
model has with all tokens.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.published import published_scores, source
from jobs.summary import BASELINE
from jobs.tables import latex_escaped, percent

AVERAGE, SHARE = ("", "Avg."), ("", "Perf. %")

# Benchmark -> its name in papers and the columns it has there, in their order.
_TITLES = {
    "videomme": "Video-MME",
    "mvbench": "MVBench",
    "longvideobench": "LongVideoBench",
    "mlvu": "MLVU",
}
_SPLITS = {"videomme": ("duration", ("short", "medium", "long"))}

# (benchmark or "", column) -> share in [0, 1]
Values = dict[tuple[str, str], float | None]


@dataclass
class PaperRow:
    """One method at one retention with one model.

    Attributes:
        model: Model, with its frames where they differ between rows.
        method: Method with the options that its cell names.
        retention: Share of the tokens asked for, in (0, 1].
        kept: Share really kept, averaged over layers and benchmarks; `None` if unknown.
        values: What was measured.
        published: What the paper prints for it.
    """

    model: str
    method: str
    retention: float
    kept: float | None = None
    values: Values = field(default_factory=dict)
    published: Values = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """Rows in the order in which they are printed, and what stands across.

    Attributes:
        columns: (benchmark or "", column), the last two being Avg. and Perf.
        rows: Full runs first, then by retention.
        with_published: Whether published numbers stand beside the measured ones.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[PaperRow, ...]
    with_published: bool

    @property
    def with_model(self) -> bool:
        """Whether rows differ in their model."""
        return len({row.model for row in self.rows}) > 1

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table; a published number stands in brackets."""
        header = [*self._names(), *(_title(*column) for column in self.columns)]
        marks = ["---"] * (len(self._names()) - 2) + ["---:"] * (len(self.columns) + 2)
        lines = [header, marks, *(self._cells(row) for row in self.rows)]
        text = "\n".join(
            "| " + " | ".join(part.replace("|", "\\|") for part in line) + " |" for line in lines
        )
        return f"{text}\n\n{self._note()}" if self._note() else text

    def latex(self) -> str:
        """A LaTeX `tabular` with the rules of the booktabs package, a rule per retention."""
        names = self._names()
        groups: list[list[str]] = []
        for benchmark, column in self.columns:
            title = _TITLES.get(benchmark, benchmark)
            if groups and benchmark and groups[-1][0] == title:
                groups[-1].append(column)
            else:
                groups.append([title, column])
        top = [""] * len(names)
        for title, *columns in groups:
            span = len(columns)
            text = latex_escaped(title)
            top.append(text if span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{text}}}")
        below = [*names, *(_below(*column) for column in self.columns)]
        letters = "l" * (len(names) - 2) + "r" * (len(self.columns) + 2)
        lines = [f"\\begin{{tabular}}{{{letters}}}", "\\toprule", " & ".join(top) + r" \\"]
        lines.append(" & ".join(map(latex_escaped, below)) + r" \\")
        previous = None
        for row in self.rows:
            group = (row.model, row.retention)
            if group != previous:
                lines.append("\\midrule")
            previous = group
            lines.append(" & ".join(map(latex_escaped, self._cells(row))) + r" \\")
        note = f"\n% {self._note()}" if self._note() else ""
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + note

    def csv(self) -> str:
        """All figures unrounded, as shares; empty where there is none."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        names = [_key(*column) for column in self.columns]
        extra = [f"{name}_published" for name in names] if self.with_published else []
        writer.writerow(["model", "method", "retention", "kept", *names, *extra])
        for row in self.rows:
            known = [row.values.get(column) for column in self.columns]
            printed = [row.published.get(column) for column in self.columns]
            more = printed if self.with_published else []
            writer.writerow([row.model, row.method, row.retention, row.kept, *known, *more])
        return stream.getvalue()

    def _names(self) -> list[str]:
        """Heads of what identifies a row."""
        return [*(["Model"] if self.with_model else []), "Method", "Retention %", "Kept %"]

    def _cells(self, row: PaperRow) -> list[str]:
        """One row as text."""
        model = [row.model] if self.with_model else []
        names = [*model, row.method, f"{100 * row.retention:g}", percent(row.kept)]
        return [*names, *(self._cell(row, column) for column in self.columns)]

    def _cell(self, row: PaperRow, column: tuple[str, str]) -> str:
        """One figure, with the published one if there is one."""
        text = percent(row.values.get(column))
        printed = row.published.get(column)
        if not self.with_published or printed is None:
            return text
        return f"{text} ({percent(printed)})"

    def _note(self) -> str:
        """What stands in brackets."""
        shown = self.with_published and any(row.published for row in self.rows)
        return f"In brackets: published, {source()}." if shown else ""


def paper_table(cells: Sequence[Mapping[str, Any]], *, published: bool = False) -> PaperTable:
    """Arrange the cells of any runs in the layout of papers.

    Cells of one model and method on several benchmarks share a row, whatever run they are from. A
    cell that occurs twice (another run of the same) begins another row.

    Args:
        cells: Flat summaries with `model`, `num_frames` and `run_id`.
        published: Set the paper's numbers beside the measured ones.
    """
    columns = _columns(cells)
    overall = [column for column in columns if column[1] == "overall"]
    several = len({cell.get("num_frames") for cell in cells}) > 1
    keys: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for cell in cells:
        copy = 0
        while cell["benchmark"] in keys.get((*_setup(cell), copy, cell["cell"]), {}):
            copy += 1
        keys.setdefault((*_setup(cell), copy, cell["cell"]), {})[str(cell["benchmark"])] = cell
    rows = {
        key: _row(list(own.values()), overall, several, key[2], published)
        for key, own in keys.items()
    }
    for (*setup, copy, _), row in rows.items():
        full = _full(rows, keys, (*setup, copy)) or _full(rows, keys, (*setup, 0))
        row.values[SHARE] = _share(row.values, full.values if full else {})
        row.published[SHARE] = _share(row.published, full.published if full else {})
    order = list(dict.fromkeys(key[:2] for key in rows))
    ranked = sorted(
        rows,
        key=lambda key: (
            order.index(key[:2]),
            _method(keys[key]) != BASELINE,
            rows[key].retention,
        ),
    )
    for row in rows.values():
        row.published = {key: value for key, value in row.published.items() if value is not None}
    return PaperTable(
        (*columns, AVERAGE, SHARE), tuple(rows[key] for key in ranked), with_published=published
    )


def _setup(cell: Mapping[str, Any]) -> tuple[Any, Any]:
    """Model and frames: rows that differ in them have nothing in common."""
    return cell["model"], cell.get("num_frames")


def _columns(cells: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The benchmarks of the table, those of the papers first, with their columns."""
    found = {str(cell["benchmark"]) for cell in cells}
    ordered = [name for name in _TITLES if name in found] + sorted(found - set(_TITLES))
    return tuple(
        (name, column)
        for name in ordered
        for column in (*_SPLITS.get(name, ("", ()))[1], "overall")
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
        method=" ".join(words) + (f" ({first.get('run_id')})" if copy else ""),
        retention=first["retention_requested"],
        kept=sum(shares) / len(shares) if shares else None,
    )
    for cell in own:
        name = str(cell["benchmark"])
        row.values[name, "overall"] = cell["accuracy"]
        group, parts = _SPLITS.get(name, ("", ()))
        for part in parts:
            entry = cell["accuracy_by"].get(group, {}).get(part)
            row.values[name, part] = entry["accuracy"] if entry else None
    if published:
        for name, columns in published_scores(first).items():
            row.published |= {(name, column): score for column, score in columns.items()}
    row.values[AVERAGE] = _mean(row.values, overall)
    row.published[AVERAGE] = _mean(row.published, overall)
    return row


def _full(
    rows: Mapping[tuple[Any, ...], PaperRow],
    keys: Mapping[tuple[Any, ...], Mapping[str, Mapping[str, Any]]],
    prefix: tuple[Any, ...],
) -> PaperRow | None:
    """The row with all tokens of the same model."""
    return next(
        (row for key, row in rows.items() if key[:3] == prefix and _method(keys[key]) == BASELINE),
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


def _below(benchmark: str, column: str) -> str:
    """Head of a column under the name of its benchmark."""
    return "" if column == "overall" and benchmark not in _SPLITS else column.capitalize()


def _title(benchmark: str, column: str) -> str:
    """Head of a column in one line."""
    title = _TITLES.get(benchmark, benchmark)
    if not benchmark:
        return column
    return title if column == "overall" and benchmark not in _SPLITS else f"{title} {column}"


def _key(benchmark: str, column: str) -> str:
    """Head of a column in the CSV."""
    return f"{benchmark}_{column}" if benchmark else {"Avg.": "average"}.get(column, "performance")
