"""The form of the papers' table: rows and columns, and how they are written down.

`jobs.report.tables.paper` fills it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.report.escaping import latex_text
from jobs.report.formatting import (
    csv_text,
    latex_notes,
    latex_row,
    markdown_notes,
    markdown_table,
    percent,
)
from jobs.results.published import source
from tango_core.benchmarks import facts_of
from tango_core.benchmarks.facts import PaperColumn
from tango_core.metrics import ACCURACY

AVERAGE, SHARE = ("", "Avg."), ("", "Perf. %")

_LAST = PaperColumn(order=sys.maxsize)

# (benchmark or "", column) -> share in [0, 1]
Values = dict[tuple[str, str], float | None]


@dataclass
class PaperRow:
    """One method at one retention with one model.

    Attributes:
        model: Model, with its frames where they differ between rows, and its checkpoint where rows
            are of several.
        method: Method with the options that its cell names.
        retention: Share of the tokens asked for, in (0, 1].
        protocol: Harness whose protocol the questions were put under; "" for none.
        kept: Share really kept, averaged over layers and benchmarks; `None` if unknown.
        values: What was measured.
        published: What the paper prints for it.
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
    """Rows in the order in which they are printed, and what stands across.

    Attributes:
        columns: (benchmark or "", column), the last two being Avg. and Perf.
        rows: Full runs first, then by retention.
        with_published: Whether published numbers stand beside the measured ones.
        headlines: Benchmark -> name of its headline; one that is not accuracy stands in its column.
        notes: Sentences printed below.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[PaperRow, ...]
    with_published: bool
    notes: tuple[str, ...] = ()
    headlines: Mapping[str, str] = field(default_factory=dict)

    @property
    def with_model(self) -> bool:
        """Whether rows differ in their model."""
        return len({row.model for row in self.rows}) > 1

    @property
    def with_protocol(self) -> bool:
        """Whether rows differ in their protocol."""
        return len({row.protocol for row in self.rows}) > 1

    def markdown(self) -> str:
        """A GitHub-flavoured Markdown table; a published number stands in brackets."""
        header = [*self._names(), *(self._title(*column) for column in self.columns)]
        rows = [self._texts(row) for row in self.rows]
        text = markdown_table(header, rows, text_columns=len(self._names()) - 2)
        return "\n\n".join([text, *markdown_notes(self._sentences())])

    def latex(self) -> str:
        """A LaTeX `tabular` with the rules of the booktabs package, a rule per retention."""
        names = self._names()
        groups: list[list[str]] = []
        for benchmark, column in self.columns:
            title = self._named(benchmark)
            if groups and benchmark and groups[-1][0] == title:
                groups[-1].append(column)
            else:
                groups.append([title, column])
        top = [""] * len(names)
        for title, *columns in groups:
            span = len(columns)
            text = latex_text(title)
            top.append(text if span == 1 else rf"\multicolumn{{{span}}}{{c}}{{{text}}}")
        below = [*names, *(_below(*column) for column in self.columns)]
        letters = "l" * (len(names) - 2) + "r" * (len(self.columns) + 2)
        lines = [f"\\begin{{tabular}}{{{letters}}}", "\\toprule", " & ".join(top) + r" \\"]
        lines.append(latex_row(below))
        previous = None
        for row in self.rows:
            group = (row.model, row.protocol, row.retention)
            if group != previous:
                lines.append("\\midrule")
            previous = group
            lines.append(latex_row(self._texts(row)))
        notes = latex_notes(self._sentences())
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", *notes])

    def csv(self) -> str:
        """All figures unrounded, as shares; empty where there is none."""
        names = [_key(*column) for column in self.columns]
        extra = [f"{name}_published" for name in names] if self.with_published else []
        protocol = ["protocol"] if self.with_protocol else []
        rows = []
        for row in self.rows:
            known = [row.values.get(column) for column in self.columns]
            printed = [row.published.get(column) for column in self.columns]
            more = printed if self.with_published else []
            own = [row.protocol] if self.with_protocol else []
            rows.append([row.model, *own, row.method, row.retention, row.kept, *known, *more])
        return csv_text(["model", *protocol, "method", "retention", "kept", *names, *extra], rows)

    def _named(self, benchmark: str) -> str:
        """Name of a benchmark, with its headline if that is not accuracy."""
        headline = self.headlines.get(benchmark, ACCURACY.title)
        title = title_of(benchmark)
        return title if headline == ACCURACY.title else f"{title} {headline}"

    def _title(self, benchmark: str, column: str) -> str:
        """Head of a column in one line."""
        if not benchmark:
            return column
        title = self._named(benchmark)
        return title if _is_only(benchmark, column) else f"{title} {column}"

    def _names(self) -> list[str]:
        """Heads of what identifies a row."""
        model = ["Model"] if self.with_model else []
        protocol = ["Protocol"] if self.with_protocol else []
        return [*model, *protocol, "Method", "Retention %", "Kept %"]

    def _texts(self, row: PaperRow) -> list[str]:
        """One row as text."""
        own = [row.model] if self.with_model else []
        own += [row.protocol] if self.with_protocol else []
        names = [*own, row.method, f"{100 * row.retention:g}", percent(row.kept)]
        return [*names, *(self._text(row, column) for column in self.columns)]

    def _text(self, row: PaperRow, column: tuple[str, str]) -> str:
        """One figure, with the published one if there is one."""
        text = percent(row.values.get(column))
        printed = row.published.get(column)
        if not self.with_published or printed is None:
            return text
        return f"{text} ({percent(printed)})"

    def _sentences(self) -> list[str]:
        """What stands in brackets, and the notes."""
        shown = self.with_published and any(row.published for row in self.rows)
        return [*([f"In brackets: published, {source()}."] if shown else []), *self.notes]


def title_of(benchmark: str) -> str:
    """Name of a benchmark for readers."""
    return facts_of(benchmark).title or benchmark


def paper_column(benchmark: str) -> PaperColumn:
    """The columns of a benchmark; those that papers do not print come last, with one column."""
    return facts_of(benchmark).paper_column or _LAST


def _below(benchmark: str, column: str) -> str:
    """Head of a column under the name of its benchmark."""
    return "" if _is_only(benchmark, column) else column.capitalize()


def _is_only(benchmark: str, column: str) -> bool:
    """Whether a benchmark has no other column."""
    return column == "overall" and not paper_column(benchmark).values


def _key(benchmark: str, column: str) -> str:
    """Head of a column in the CSV."""
    return f"{benchmark}_{column}" if benchmark else {"Avg.": "average"}.get(column, "performance")
