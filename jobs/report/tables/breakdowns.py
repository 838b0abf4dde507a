"""Accuracy by group of the questions: as tables to read, and in long form for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.report.escaping import markdown_text
from jobs.report.formatting import DASH, csv_text, interval, markdown_table, percent
from jobs.report.tables.labels import labels
from jobs.results.cell_summary import CellSummary
from tango_core.benchmarks import facts_of
from tango_core.metrics import Accuracy

_HEADER = (
    "run_id",
    "model",
    "benchmark",
    "cell",
    "group",
    "value",
    "inner_group",
    "inner_value",
    "num_questions",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
)


@dataclass(frozen=True)
class Column:
    """One value of a group.

    Attributes:
        name: The value.
        count: Questions with it.
    """

    name: str
    count: int


@dataclass(frozen=True)
class Entry:
    """One accuracy of a break-down.

    Attributes:
        text: In percent.
        interval: Its interval, in words.
        heat: How strongly the page colours it, in percent.
    """

    text: str
    interval: str
    heat: int = 0


@dataclass(frozen=True)
class BreakdownRow:
    """One cell: an entry per column."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Breakdown:
    """One table: a row per cell, a column per value that any of them has."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[BreakdownRow, ...]


def breakdowns(cells: Sequence[CellSummary]) -> list[Breakdown]:
    """One table per benchmark and group, then those inside a group."""
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    tables = []
    for benchmark in benchmarks:
        own = [cell for cell in cells if cell.benchmark == benchmark]
        parts = [_by_table(cell) for cell in own]
        for group in dict.fromkeys(group for part in parts for group in part):
            name = f"{benchmark}: {group}" if len(benchmarks) > 1 else group
            table = _breakdown(name, own, [part.get(group, {}) for part in parts])
            averaged = group == facts_of(benchmark).macro_group
            tables.append(_with_mean(table, own) if averaged else table)
    return tables


def breakdowns_csv(cells: Sequence[CellSummary]) -> str:
    """All break-downs, unrounded; the inner columns are empty where one group is meant.

    The mean over the values of a group has the value `mean` with its name, and no interval.
    """
    rows = [
        [cell.run_id, cell.model, cell.benchmark, cell.name, *keys, *figures]
        for cell in cells
        for keys, figures in _long_form(cell)
    ]
    return csv_text(_HEADER, rows)


def breakdowns_markdown(cells: Sequence[CellSummary]) -> str:
    """A Markdown table per group: cells down, values across with the number of their questions."""
    texts = []
    for table in breakdowns(cells):
        header = ["cell", *(f"{column.name} ({column.count})" for column in table.columns)]
        rows = [[row.name, *(entry.text for entry in row.entries)] for row in table.rows]
        texts.append(f"### {markdown_text(table.name)}\n\n{markdown_table(header, rows)}")
    return "\n\n".join(["Accuracy in %, in brackets the number of questions.", *texts])


def _by_table(cell: CellSummary) -> dict[str, Mapping[str, Accuracy]]:
    """Name of a table -> value -> accuracy; two groups at once make a table per outer value."""
    crossed = {
        f"{outer} {value}, {inner}": found
        for outer, values in cell.accuracy_cross.items()
        for value, groups in values.items()
        for inner, found in groups.items()
    }
    return {**dict(sorted(cell.accuracy_by.items())), **crossed}


def _breakdown(
    name: str, cells: Sequence[CellSummary], found: Sequence[Mapping[str, Accuracy]]
) -> Breakdown:
    """One table: a row per cell, a column per value that any of them has."""
    values = sorted({value for by_value in found for value in by_value})
    counts = [
        max(by_value[value].num_questions for by_value in found if value in by_value)
        for value in values
    ]
    shares = [accuracy.value for by_value in found for accuracy in by_value.values()]
    span = (min(shares), max(shares))
    return Breakdown(
        name,
        columns=tuple(map(Column, values, counts)),
        rows=tuple(
            BreakdownRow(label, tuple(_entry(by_value.get(value), span) for value in values))
            for label, by_value in zip(labels(cells), found, strict=True)
        ),
    )


def _entry(accuracy: Accuracy | None, span: tuple[float, float]) -> Entry:
    """One accuracy, coloured by where it lies between the lowest and the highest of the table."""
    if accuracy is None:
        return Entry(DASH, "no question")
    low, high = span
    return Entry(
        percent(accuracy.value),
        f"{interval(accuracy)} %, n = {accuracy.num_questions}",
        round(4 + 36 * (accuracy.value - low) / max(high - low, 0.01)),
    )


def _with_mean(table: Breakdown, cells: Sequence[CellSummary]) -> Breakdown:
    """The table with the mean over its values as a last column."""
    asked = max(cell.counts.num_scored for cell in cells)
    return replace(
        table,
        columns=(*table.columns, Column(_mean_name(cells[0].benchmark), asked)),
        rows=tuple(
            BreakdownRow(
                row.name,
                (*row.entries, Entry(percent(cell.accuracy_macro), "mean of the columns")),
            )
            for row, cell in zip(table.rows, cells, strict=True)
        ),
    )


def _mean_name(benchmark: str) -> str:
    """`mean`, with the name that the benchmark's authors give it."""
    title = facts_of(benchmark).macro_title
    return f"mean ({title})" if title else "mean"


def _long_form(cell: CellSummary) -> Iterator[tuple[tuple[str, ...], tuple[float | None, ...]]]:
    """Group, value, inner group and inner value; number of questions, accuracy and its interval."""
    for group, values in cell.accuracy_by.items():
        for value, accuracy in values.items():
            yield (group, value, "", ""), _figures(accuracy)
        averaged = group == facts_of(cell.benchmark).macro_group
        if averaged and cell.accuracy_macro is not None:
            figures = (cell.counts.num_scored, cell.accuracy_macro, None, None)
            yield (group, _mean_name(cell.benchmark), "", ""), figures
    for group, outer_values in cell.accuracy_cross.items():
        for value, inner_groups in outer_values.items():
            for inner, inner_values in inner_groups.items():
                for inner_value, accuracy in inner_values.items():
                    yield (group, value, inner, inner_value), _figures(accuracy)


def _figures(accuracy: Accuracy) -> tuple[float | None, ...]:
    """Number of questions, accuracy and its interval."""
    return accuracy.num_questions, accuracy.value, accuracy.low, accuracy.high
