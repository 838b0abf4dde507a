"""The table layout of papers on token pruning: rows of methods and retentions, benchmark columns.

Avg. is the mean of the benchmarks' overall accuracies, Perf. the ratio to the Avg. of the same
model with all tokens. Accuracies are not averaged with other scores: if benchmarks have different
headline metrics, Avg. covers those with accuracy, and a note says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from statistics import fmean

from jobs.report.formatting import Table, latex_notes, latex_text, markdown_notes, percent
from jobs.results.cell_summary import CellSummary, have_one_headline, metric_title
from jobs.results.comparisons import Setup, setup_names, setups_of
from jobs.results.published import caveats, published_scores, source
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.base import PaperColumn
from tango_core.metrics import ACCURACY

AVERAGE, SHARE = ("", "Avg."), ("", "Perf. %")
HARNESSES = ("vlmevalkit", "lmms_eval")

# Shares in [0, 1] by (benchmark or "", column).
Values = dict[tuple[str, str], float | None]


@dataclass
class PaperRow:
    """One method at one retention with one model.

    Attributes:
        cells: Its cells by benchmark.
        model: Model, with the number of frames and the checkpoint if rows differ in them.
        method: Method with the options in the cell's name.
        protocol: Harness whose protocol was used; "" for none.
        values: Measured scores.
        published: The paper's scores.
    """

    cells: Mapping[str, CellSummary]
    model: str
    method: str
    protocol: str = ""
    values: Values = field(default_factory=dict)
    published: Values = field(default_factory=dict)

    @property
    def first(self) -> CellSummary:
        """A cell of the row."""
        return next(iter(self.cells.values()))

    @property
    def retention(self) -> float:
        """Requested share of the tokens, in (0, 1]."""
        return self.first.retention_requested

    @property
    def kept(self) -> float | None:
        """Share of kept tokens, averaged over layers and benchmarks; `None` if unknown."""
        shares = [cell.equivalent_retention for cell in self.cells.values()]
        known = [share for share in shares if share is not None]
        return fmean(known) if known else None


@dataclass(frozen=True)
class PaperTable:
    """Rows and columns of the table in printing order.

    Attributes:
        columns: (benchmark or "", column), the last two being Avg. and Perf.
        rows: Full runs first, then by retention.
        titles: Benchmark -> its name, with the headline metric unless that is accuracy.
        notes: Sentences printed below.
        with_published: Whether published numbers are printed after the measured ones.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[PaperRow, ...]
    titles: Mapping[str, str]
    notes: tuple[str, ...]
    with_published: bool

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table with published numbers in brackets."""
        heads = [
            f"{self.titles.get(benchmark, '')} {'' if _is_only(benchmark, part) else part}".strip()
            for benchmark, part in self.columns
        ]
        return "\n\n".join([self._table(heads).markdown(), *markdown_notes(self._sentences())])

    def latex(self) -> str:
        """A LaTeX `tabular` with the rules of the booktabs package, a rule per retention."""
        table = self._table(["" if _is_only(*one) else one[1].capitalize() for one in self.columns])
        top = [""] * (len(table.header) - len(self.columns))
        for title, own in groupby(self.columns, lambda one: self.titles.get(one[0], "")):
            text, span = latex_text(title), len(list(own))
            joined = [rf"\multicolumn{{{span}}}{{c}}{{{text}}}"]
            top += [text] * span if span == 1 or not title else joined
        levels = [(row.model, row.protocol, row.retention) for row in self.rows]
        starts = {at for at, one in enumerate(levels) if at == 0 or one != levels[at - 1]}
        text = table.latex([" & ".join(top) + r" \\"], starts)
        return "\n".join([text, *latex_notes(self._sentences())])

    def csv(self) -> str:
        """CSV with all figures, unrounded, as shares; empty if unknown."""
        names = {one: "_".join(filter(None, one)) for one in self.columns}
        names |= {AVERAGE: "average", SHARE: "performance"}
        rows = []
        for row in self.rows:
            figures: dict[str, object] = {"model": row.model, "protocol": row.protocol}
            figures |= {"method": row.method, "retention": row.retention, "kept": row.kept}
            figures |= {name: row.values.get(one) for one, name in names.items()}
            if self.with_published:
                figures |= {f"{name}_published": row.published.get(o) for o, name in names.items()}
            rows.append(figures)
        return Table.of(rows).without(*([] if self._differ("protocol") else ["protocol"])).csv()

    def _differ(self, attribute: str) -> bool:
        return len({getattr(row, attribute) for row in self.rows}) > 1

    def _table(self, titles: Sequence[str]) -> Table:
        """The table with these headers of its columns; rows say in what they differ."""
        named = [name for name in ("Model", "Protocol") if self._differ(name.lower())]
        rows = []
        for row in self.rows:
            texts = [getattr(row, name.lower()) for name in named]
            texts += [row.method, f"{100 * row.retention:g}", percent(row.kept)]
            for column in self.columns:
                text, printed = percent(row.values.get(column)), row.published.get(column)
                texts.append(text if printed is None else f"{text} ({percent(printed)})")
            rows.append(texts)
        return Table([*named, "Method", "Retention %", "Kept %", *titles], rows, len(named) + 1)

    def _sentences(self) -> list[str]:
        """The explanation of the brackets, and the notes."""
        shown = any(row.published for row in self.rows)
        return [*([f"In brackets: published, {source()}."] if shown else []), *self.notes]


def _columns(benchmark: str) -> PaperColumn:
    """The columns of a benchmark; benchmarks that papers do not print have one, at the end."""
    return facts_of(benchmark).paper_column or PaperColumn(order=sys.maxsize)


def _is_only(benchmark: str, column: str) -> bool:
    """Whether the benchmark has no other column."""
    return column == "overall" and not _columns(benchmark).values


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
    # A harness calls its protocol differently for some benchmarks; our benchmarks have none.
    harnesses = [next(filter(cell.protocol.startswith, HARNESSES), "") for cell in cells]
    setups = setups_of([replace(c, protocol=h) for c, h in zip(cells, harnesses, strict=True)])
    names = dict(zip(setups, setup_names(setups, ["harness"]), strict=True))
    # (Setup, number of earlier cells of the same setup and name, name) -> cells by benchmark.
    members: dict[tuple[Setup, int, str], dict[str, CellSummary]] = {}
    for cell, setup in zip(cells, setups, strict=True):
        keys = ((setup, copy, cell.name) for copy in count())
        key = next(one for one in keys if cell.benchmark not in members.get(one, ()))
        members.setdefault(key, {})[cell.benchmark] = cell
    by_benchmark = {cell.benchmark: cell for cell in cells}
    benchmarks = sorted(by_benchmark, key=lambda name: (_columns(name).order, name))
    plain = {name: facts_of(name).title or name for name in benchmarks}
    others = [n for n in benchmarks if by_benchmark[n].metric != ACCURACY.name]
    titles = {n: f"{plain[n]} {metric_title(by_benchmark[n])}" for n in others}
    mixed = not have_one_headline(cells)
    averaged = [n for n in benchmarks if not mixed or n not in others]
    rows = {}
    for (setup, copy, name), own in members.items():
        first = next(iter(own.values()))
        method = first.series + (f" ({first.run_id})" if copy else "")
        row = PaperRow(own, names[setup], method, setup.harness or "")
        _fill(row, averaged, published)
        rows[setup, copy, name] = row
    fulls = {key[:2]: row for key, row in reversed(rows.items()) if row.first.is_baseline}
    for (setup, copy, _), row in rows.items():
        full = fulls.get((setup, copy)) or fulls.get((setup, 0))
        if full and _same_questions(row.cells, full.cells):
            row.values[SHARE] = _share(row.values, full.values)
        if full and row.published:
            row.published[SHARE] = _share(row.published, full.published)
    order = list(names)
    ranked = sorted(
        rows.items(),
        key=lambda one: (order.index(one[0][0]), not one[1].first.is_baseline, one[1].retention),
    )
    if mixed:
        what = f"are of {', '.join(plain[n] for n in averaged)}" if averaged else "are left out"
        listed = ", ".join(f"{metric_title(by_benchmark[n])} of {plain[n]}" for n in others)
        notes = [*notes, f"Avg. and Perf. % {what}; {listed} is in no mean with accuracies."]
    columns = [(n, part) for n in benchmarks for part in (*_columns(n).values, "overall")]
    return PaperTable(
        (*columns, AVERAGE, SHARE),
        tuple(row for _, row in ranked),
        plain | titles,
        (*notes, *(caveats(cells) if published else ())),
        with_published=published,
    )


def _fill(row: PaperRow, averaged: Sequence[str], published: bool) -> None:
    """Add the scores of a row's cells; Avg. requires all benchmarks of the table."""
    for name, cell in row.cells.items():
        parts = cell.headline_by.get(_columns(name).group, {})
        found = {part: parts.get(part) for part in _columns(name).values}
        for part, one in {**found, "overall": cell.headline}.items():
            row.values[name, part] = one.value if one else None
    for name, columns in published_scores(row.first).items() if published else ():
        row.published |= {(name, column): score for column, score in columns.items()}
    for values in filter(None, (row.values, row.published)):
        known = [value for n in averaged if (value := values.get((n, "overall"))) is not None]
        values[AVERAGE] = fmean(known) if known and len(known) == len(averaged) else None


def _same_questions(own: Mapping[str, CellSummary], full: Mapping[str, CellSummary]) -> bool:
    """Whether two rows have the same questions, as far as recorded."""
    return all(
        one.questions_digest == full[name].questions_digest
        and one.counts.num_scored == full[name].counts.num_scored
        for name, one in own.items()
        if name in full
    )


def _share(values: Values, full: Values) -> float | None:
    """Perf.: Avg. divided by the Avg. with all tokens."""
    ours, theirs = values.get(AVERAGE), full.get(AVERAGE)
    return ours / theirs if ours is not None and theirs else None
