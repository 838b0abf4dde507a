"""The table layout of papers on token pruning: rows of methods and retentions, benchmark columns.

Avg. is the mean of the benchmarks' overall accuracies, Perf. the ratio to the Avg. of the same
model with all tokens. Accuracies are not averaged with other scores: if benchmarks have different
headline metrics, Avg. covers those with accuracy, and a note says so.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from jobs.report.formatting import (
    Table,
    latex_notes,
    latex_text,
    markdown_notes,
    percent,
)
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


class _Key(NamedTuple):
    """Identifies a row; `copy` counts earlier cells of the same setup and name."""

    setup: _Setup
    copy: int
    name: str


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
    cells = [
        replace(cell, num_frames=setup.num_frames)
        for cell, setup in zip(cells, setups, strict=True)
    ]
    columns = _columns(cells)
    headlines = {cell.benchmark: cell for cell in cells}
    mixed = not have_one_headline(cells)
    overall = [
        (name, column)
        for name, column in columns
        if column == "overall" and (not mixed or headlines[name].metric == ACCURACY.name)
    ]
    several = len({cell.num_frames for cell in cells}) > 1
    # Cells by row and benchmark.
    keys: dict[_Key, dict[str, CellSummary]] = {}
    for cell, setup in zip(cells, setups, strict=True):
        copy = 0
        while cell.benchmark in keys.get(_Key(setup, copy, cell.name), {}):
            copy += 1
        keys.setdefault(_Key(setup, copy, cell.name), {})[cell.benchmark] = cell
    rows = {
        key: _row(key, list(own.values()), overall, several, published) for key, own in keys.items()
    }
    full_keys = {(key.setup, key.copy): key for key in reversed(rows) if _is_full(keys[key])}
    for key, row in rows.items():
        full_key = full_keys.get((key.setup, key.copy)) or full_keys.get((key.setup, 0))
        full = rows[full_key] if full_key else PaperRow("", "", 1.0)
        alike = full_key is not None and _same_questions(keys[key], keys[full_key])
        row.values[SHARE] = _share(row.values, full.values) if alike else None
        row.published[SHARE] = _share(row.published, full.published)
    order = list(dict.fromkeys(key.setup for key in rows))
    ranked = sorted(
        rows,
        key=lambda key: (order.index(key.setup), not _is_full(keys[key]), rows[key].retention),
    )
    for row in rows.values():
        row.published = {key: value for key, value in row.published.items() if value is not None}
    return PaperTable(
        (*columns, AVERAGE, SHARE),
        tuple(rows[key] for key in ranked),
        with_published=published,
        headlines={name: metric_title(cell) for name, cell in headlines.items()},
        notes=(
            *notes,
            *(_mean_notes(overall, headlines) if mixed else ()),
            *(caveats(cells) if published else ()),
        ),
    )


def _mean_notes(
    averaged: Sequence[tuple[str, str]], headlines: Mapping[str, CellSummary]
) -> list[str]:
    """Note about Avg. and Perf. % if benchmarks have different headline metrics."""
    within = [title_of(name) for name, _ in averaged]
    others = [
        f"{metric_title(cell)} of {title_of(name)}"
        for name, cell in headlines.items()
        if cell.metric != ACCURACY.name
    ]
    what = f"are of {', '.join(within)}" if within else "are left out"
    return [f"Avg. and Perf. % {what}; {', '.join(others)} is in no mean with accuracies."]


def _setups(cells: Sequence[CellSummary]) -> list[_Setup]:
    """Setup of every cell; unknown values are taken from the other cells of the model if unique.

    Imported answers have no number of frames, and this project's own benchmarks have no harness.
    """
    known: defaultdict[tuple[str, str], set[object]] = defaultdict(set)
    for cell in cells:
        known["frames", cell.model].add(cell.num_frames)
        known["harness", cell.model].add(_harness(cell))

    def only(what: str, cell: CellSummary) -> Any:
        found = known[what, cell.model] - {None}
        return found.pop() if len(found) == 1 else None

    return [
        _Setup(
            cell.model,
            weights,
            cell.num_frames or only("frames", cell),
            _harness(cell) or only("harness", cell),
            cell.input_size,
        )
        for cell, weights in zip(cells, weights_names(cells), strict=True)
    ]


def _harness(cell: CellSummary) -> str | None:
    """Harness whose prompts, frames and scores a cell uses; `None` if none or unknown."""
    return next((name for name in HARNESSES if cell.protocol.startswith(name)), None)


def _columns(cells: Sequence[CellSummary]) -> tuple[tuple[str, str], ...]:
    """All columns: benchmarks printed in papers first."""
    found = {cell.benchmark for cell in cells}
    ordered = sorted(found, key=lambda name: (paper_column(name).order, name))
    return tuple(
        (name, column) for name in ordered for column in (*paper_column(name).values, "overall")
    )


def _row(
    key: _Key,
    own: Sequence[CellSummary],
    overall: Sequence[tuple[str, str]],
    several: bool,
    published: bool,
) -> PaperRow:
    """Build one row from the cells of a method; Avg. requires all benchmarks of the table."""
    first, setup = own[0], key.setup
    shares = [c.equivalent_retention for c in own if c.equivalent_retention is not None]
    frames = f"{setup.num_frames} frames" if several and setup.num_frames else ""
    named = (setup.model, setup.weights, frames, setup.input_size)
    row = PaperRow(
        model=", ".join(word for word in named if word),
        protocol=setup.harness or "",
        method=first.series + (f" ({first.run_id})" if key.copy else ""),
        retention=first.retention_requested,
        kept=sum(shares) / len(shares) if shares else None,
    )
    for cell in own:
        name = cell.benchmark
        row.values[name, "overall"] = cell.headline.value if cell.headline else None
        own_columns = paper_column(name)
        for part in own_columns.values:
            found = cell.headline_by.get(own_columns.group, {}).get(part)
            row.values[name, part] = found.value if found else None
    if published:
        for name, columns in published_scores(first).items():
            row.published |= {(name, column): score for column, score in columns.items()}
    row.values[AVERAGE] = _mean(row.values, overall)
    row.published[AVERAGE] = _mean(row.published, overall)
    return row


def _same_questions(own: Mapping[str, CellSummary], full: Mapping[str, CellSummary]) -> bool:
    """Whether two rows have the same questions, as far as recorded."""
    return all(
        one.questions_digest == full[name].questions_digest
        and one.counts.num_scored == full[name].counts.num_scored
        for name, one in own.items()
        if name in full
    )


def _is_full(own: Mapping[str, CellSummary]) -> bool:
    """Whether the cells of a row are `full`."""
    return next(iter(own.values())).is_baseline


def _mean(values: Values, columns: Sequence[tuple[str, str]]) -> float | None:
    """Mean of the columns; `None` unless all are known."""
    known = [value for value in map(values.get, columns) if value is not None]
    return sum(known) / len(known) if known and len(known) == len(columns) else None


def _share(values: Values, full: Values) -> float | None:
    """Perf.: Avg. divided by the Avg. with all tokens."""
    ours, theirs = values.get(AVERAGE), full.get(AVERAGE)
    return ours / theirs if ours is not None and theirs else None
