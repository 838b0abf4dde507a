"""The table layout of papers on token pruning: rows of methods and retentions, benchmark columns.

Avg. is the mean of the benchmarks' overall accuracies, Perf. the ratio to the Avg. of the same
model with all tokens. Accuracies are not averaged with other scores: if benchmarks have different
headline metrics, Avg. covers those with accuracy, and a note says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import Any, NamedTuple

from jobs.report.formatting import Table, latex_notes, latex_text, markdown_notes, percent
from jobs.results.baselines import weights_names
from jobs.results.cell_summary import CellSummary, have_one_headline, metric_title
from jobs.results.published import caveats, published_scores, source
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.base import PaperColumn
from tango_core.metrics import ACCURACY

AVERAGE, SHARE = ("", "Avg."), ("", "Perf. %")

_LAST = PaperColumn(order=sys.maxsize)

# Shares in [0, 1] by (benchmark or "", column).
Values = dict[tuple[str, str], float | None]


@dataclass
class PaperRow:
    """One method at one retention with one model.

    Attributes:
        model: Model, with the number of frames and the checkpoint if rows differ in them.
        method: Method with the options in the cell's name.
        retention: Requested share of the tokens, in (0, 1].
        protocol: Harness whose protocol was used; "" for none.
        kept: Actual share of kept tokens, averaged over layers and benchmarks; `None` if unknown.
        values: Measured scores.
        published: The paper's scores.
    """

    model: str
    method: str
    retention: float
    protocol: str = ""
    kept: float | None = None
    values: Values = field(default_factory=dict)
    published: Values = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """Rows and columns of the table in printing order.

    Attributes:
        columns: (benchmark or "", column), the last two being Avg. and Perf.
        rows: Full runs first, then by retention.
        with_published: Whether published numbers are printed after the measured ones.
        headlines: Name of the headline metric by benchmark; printed in the header unless accuracy.
        notes: Sentences printed below.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[PaperRow, ...]
    with_published: bool
    notes: tuple[str, ...] = ()
    headlines: Mapping[str, str] = field(default_factory=dict)

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table with published numbers in brackets."""
        titles = []
        for benchmark, column in self.columns:
            name = self._named(benchmark) if benchmark else ""
            titles.append(name if name and _is_only(benchmark, column) else f"{name} {column}")
        table = self._table([title.strip() for title in titles])
        return "\n\n".join([table.markdown(), *markdown_notes(self._sentences())])

    def latex(self) -> str:
        """A LaTeX `tabular` with the rules of the booktabs package, a rule per retention."""
        below = ["" if _is_only(*one) else one[1].capitalize() for one in self.columns]
        table = self._table(below)
        top = [""] * (len(table.header) - len(self.columns))
        for title, own in groupby(self.columns, lambda one: self._named(one[0])):
            text, span = latex_text(title), len(list(own))
            if span == 1 or not title:
                top += [text] * span
            else:
                top.append(rf"\multicolumn{{{span}}}{{c}}{{{text}}}")
        levels = [(row.model, row.protocol, row.retention) for row in self.rows]
        starts = {at for at, one in enumerate(levels) if at == 0 or one != levels[at - 1]}
        text = table.latex([" & ".join(top) + r" \\"], starts)
        return "\n".join([text, *latex_notes(self._sentences())])

    def csv(self) -> str:
        """CSV with all figures, unrounded, as shares; empty if unknown."""
        with_protocol = len({row.protocol for row in self.rows}) > 1
        rows = []
        for row in self.rows:
            figures: dict[str, object] = {"model": row.model}
            if with_protocol:
                figures["protocol"] = row.protocol
            figures |= {"method": row.method, "retention": row.retention, "kept": row.kept}
            figures |= {_key(*one): row.values.get(one) for one in self.columns}
            if self.with_published:
                figures |= {
                    f"{_key(*one)}_published": row.published.get(one) for one in self.columns
                }
            rows.append(figures)
        return Table.of(rows).csv()

    def _named(self, benchmark: str) -> str:
        """Name of a benchmark, with its headline metric unless that is accuracy."""
        headline = self.headlines.get(benchmark, ACCURACY.title)
        title = title_of(benchmark)
        return title if headline == ACCURACY.title else f"{title} {headline}"

    def _table(self, titles: Sequence[str]) -> Table:
        """The table with these headers of its columns; rows say in what they differ."""
        rows = []
        for row in self.rows:
            texts = {}
            for name, attribute in (("Model", "model"), ("Protocol", "protocol")):
                if len({getattr(one, attribute) for one in self.rows}) > 1:
                    texts[name] = getattr(row, attribute)
            texts |= {"Method": row.method, "Retention %": f"{100 * row.retention:g}"}
            rows.append({**texts, "Kept %": percent(row.kept)})
        names = Table.of(rows)
        figures = [[self._text(row, column) for column in self.columns] for row in self.rows]
        whole = [[*name, *own] for name, own in zip(names.rows, figures, strict=True)]
        return Table([*names.header, *titles], whole, len(names.header) - 2)

    def _text(self, row: PaperRow, column: tuple[str, str]) -> str:
        """Format one figure, with the published one if known."""
        text = percent(row.values.get(column))
        printed = row.published.get(column)
        if not self.with_published or printed is None:
            return text
        return f"{text} ({percent(printed)})"

    def _sentences(self) -> list[str]:
        """The explanation of the brackets, and the notes."""
        shown = self.with_published and any(row.published for row in self.rows)
        return [*([f"In brackets: published, {source()}."] if shown else []), *self.notes]


def title_of(benchmark: str) -> str:
    """Display name of a benchmark."""
    return facts_of(benchmark).title or benchmark


def paper_column(benchmark: str) -> PaperColumn:
    """The columns of a benchmark; benchmarks that papers do not print have one, at the end."""
    return facts_of(benchmark).paper_column or _LAST


def _is_only(benchmark: str, column: str) -> bool:
    """Whether the benchmark has no other column."""
    return column == "overall" and not paper_column(benchmark).values


def _key(benchmark: str, column: str) -> str:
    """Header of a column in the CSV."""
    return f"{benchmark}_{column}" if benchmark else {"Avg.": "average"}.get(column, "performance")


HARNESSES = ("vlmevalkit", "lmms_eval")


class _Setup(NamedTuple):
    """Model, weights, frames, harness and input; rows with different setups are not comparable."""

    model: str
    weights: str
    num_frames: int | None
    harness: str | None
    input_size: str


# Setup, number of earlier cells of the same setup and name, name.
_Key = tuple[_Setup, int, str]
# Cells of a row by benchmark.
_Own = Mapping[str, CellSummary]


def paper_table(
    cells: Sequence[CellSummary], *, published: bool = False, notes: Sequence[str] = ()
) -> PaperTable:
    """Arrange the cells of any runs in the layout of papers.

    Cells of one model and method on several benchmarks, also from different runs, share a row if
    they use the same harness and possibly the same checkpoint. A repeated cell (from another run of
    the same job) starts another row.

    Args:
        cells: Cells of one run or of several.
        published: Add the paper's numbers to the measured ones.
        notes: Sentences to print below the table.
    """
    setups = _setups(cells)
    cells = [replace(c, num_frames=one.num_frames) for c, one in zip(cells, setups, strict=True)]
    members: dict[_Key, dict[str, CellSummary]] = {}
    for cell, setup in zip(cells, setups, strict=True):
        keys = ((setup, copy, cell.name) for copy in count())
        key = next(one for one in keys if cell.benchmark not in members.get(one, ()))
        members.setdefault(key, {})[cell.benchmark] = cell
    by_benchmark = {cell.benchmark: cell for cell in cells}
    benchmarks = sorted(by_benchmark, key=lambda name: (paper_column(name).order, name))
    mixed = not have_one_headline(cells)
    averaged = [n for n in benchmarks if not mixed or by_benchmark[n].metric == ACCURACY.name]
    several = len({setup.num_frames for setup in setups}) > 1
    rows = {key: _row(key, own, averaged, several, published) for key, own in members.items()}
    fulls = {key[:2]: key for key in reversed(rows) if _is_full(members[key])}
    for key, row in rows.items():
        full = fulls.get(key[:2]) or fulls.get((key[0], 0))
        if full and _same_questions(members[key], members[full]):
            row.values[SHARE] = _share(row.values, rows[full].values)
        row.published[SHARE] = _share(row.published, rows[full].published) if full else None
    for row in rows.values():
        row.values.setdefault(SHARE, None)
        row.published = {key: value for key, value in row.published.items() if value is not None}
    order = list(dict.fromkeys(setups))
    ranked = sorted(
        rows, key=lambda key: (order.index(key[0]), not _is_full(members[key]), rows[key].retention)
    )
    if mixed:
        others = [one for one in by_benchmark.values() if one.metric != ACCURACY.name]
        listed = ", ".join(f"{metric_title(one)} of {title_of(one.benchmark)}" for one in others)
        within = ", ".join(map(title_of, averaged))
        what = f"are of {within}" if within else "are left out"
        notes = [*notes, f"Avg. and Perf. % {what}; {listed} is in no mean with accuracies."]
    columns = [(n, part) for n in benchmarks for part in (*paper_column(n).values, "overall")]
    return PaperTable(
        (*columns, AVERAGE, SHARE),
        tuple(rows[key] for key in ranked),
        with_published=published,
        headlines={name: metric_title(cell) for name, cell in by_benchmark.items()},
        notes=(*notes, *(caveats(cells) if published else ())),
    )


def _setups(cells: Sequence[CellSummary]) -> list[_Setup]:
    """Setup of every cell; unknown values are taken from the other cells of the model if unique.

    Imported answers have no number of frames, and this project's own benchmarks have no harness.
    """

    def known(cell: CellSummary, value: Callable[[CellSummary], Any]) -> Any:
        own = value(cell)
        found = {value(other) for other in cells if other.model == cell.model} - {None}
        return found.pop() if own is None and len(found) == 1 else own

    def harness(cell: CellSummary) -> str | None:
        return next((name for name in HARNESSES if cell.protocol.startswith(name)), None)

    return [
        _Setup(
            cell.model,
            weights,
            known(cell, lambda one: one.num_frames),
            known(cell, harness),
            cell.input_size,
        )
        for cell, weights in zip(cells, weights_names(cells), strict=True)
    ]


def _row(key: _Key, own: _Own, averaged: Sequence[str], several: bool, published: bool) -> PaperRow:
    """Build one row from the cells of a method; Avg. requires all benchmarks of the table."""
    setup, copy, _ = key
    first = next(iter(own.values()))
    shares = [c.equivalent_retention for c in own.values() if c.equivalent_retention is not None]
    frames = f"{setup.num_frames} frames" if several and setup.num_frames else ""
    named = (setup.model, setup.weights, frames, setup.input_size)
    row = PaperRow(
        model=", ".join(word for word in named if word),
        protocol=setup.harness or "",
        method=first.series + (f" ({first.run_id})" if copy else ""),
        retention=first.retention_requested,
        kept=sum(shares) / len(shares) if shares else None,
    )
    for name, cell in own.items():
        column = paper_column(name)
        parts = cell.headline_by.get(column.group, {})
        found = {part: parts.get(part) for part in column.values} | {"overall": cell.headline}
        row.values |= {(name, part): one.value if one else None for part, one in found.items()}
    if published:
        for name, columns in published_scores(first).items():
            row.published |= {(name, column): score for column, score in columns.items()}
    for values in (row.values, row.published):
        known = [value for n in averaged if (value := values.get((n, "overall"))) is not None]
        whole = known and len(known) == len(averaged)
        values[AVERAGE] = sum(known) / len(known) if whole else None
    return row


def _same_questions(own: _Own, full: _Own) -> bool:
    """Whether two rows have the same questions, as far as recorded."""
    return all(
        one.questions_digest == full[name].questions_digest
        and one.counts.num_scored == full[name].counts.num_scored
        for name, one in own.items()
        if name in full
    )


def _is_full(own: _Own) -> bool:
    """Whether the cells of a row are `full`."""
    return next(iter(own.values())).is_baseline


def _share(values: Values, full: Values) -> float | None:
    """Perf.: Avg. divided by the Avg. with all tokens."""
    ours, theirs = values.get(AVERAGE), full.get(AVERAGE)
    return ours / theirs if ours is not None and theirs else None
