"""Scores and differences by group of the questions, and all metrics of benchmarks with several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.report.formatting import (
    DASH,
    Table,
    difference_with_interval,
    estimate_percent,
    interval,
    markdown_text,
    p_value,
    percent,
)
from jobs.report.tables.labels import labels
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.comparisons import families_of
from jobs.results.quantities import Comparison
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY, Estimate

# (name, value) pairs of the groups of questions.
Groups = tuple[tuple[str, str], ...]
# A table: the groups that all of its questions have, and the group whose values are its columns.
_Place = tuple[Groups, str]


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
    """One value of a break-down.

    Attributes:
        text: In percent.
        interval: Its interval, in words.
        heat: How strongly the page colours it, in percent.
        groups: (name, value) pairs that its questions have; empty for a mean over values.
    """

    text: str
    interval: str
    heat: int = 0
    groups: Groups = ()


@dataclass(frozen=True)
class BreakdownRow:
    """One cell: an entry per column."""

    cell: CellSummary
    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Breakdown:
    """One table: a row per cell, a column per value that any of them has."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[BreakdownRow, ...]


def breakdowns(cells: Sequence[CellSummary]) -> list[Breakdown]:
    """One table per benchmark, metric and group, then those inside a group."""
    alone = all(set(cell.scores_by) <= {ACCURACY.name} for cell in cells)
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    tables = []
    for benchmark in benchmarks:
        own = [cell for cell in cells if cell.benchmark == benchmark]
        metrics = dict.fromkeys(metric for cell in own for metric in cell.scores_by)
        for metric in metrics:
            parts = [_by_table(cell, metric) for cell in own]
            for place in dict.fromkeys(place for part in parts for place in part):
                group = ", ".join([*(f"{outer} {value}" for outer, value in place[0]), place[1]])
                name = f"{benchmark}: {group}" if len(benchmarks) > 1 else group
                name = name if alone else f"{name}, {metric_title(own[0], metric)}"
                table = _breakdown(name, place, own, [part.get(place, {}) for part in parts])
                headline = metric == own[0].metric
                averaged = headline and group == facts_of(benchmark).macro_group
                tables.append(_with_mean(table, own) if averaged else table)
    return tables


def breakdowns_csv(cells: Sequence[CellSummary]) -> str:
    """All break-downs, unrounded; the inner columns are empty where one group is meant.

    The columns of accuracy are empty for other metrics. The mean over the values of a group has the
    value `mean` with its name, and no interval.
    """
    places = (
        "run_id",
        "model",
        "benchmark",
        "cell",
        "group",
        "value",
        "inner_group",
        "inner_value",
    )
    figures = ("num_questions", "accuracy", "accuracy_low", "accuracy_high")
    rows: list[list[object]] = []
    for cell in cells:
        for (*keys, metric), (count, *found) in _long_form(cell):
            accuracy = found if metric == ACCURACY.name else [None] * 3
            rows.append([*_place_of(cell).values(), *keys, count, *accuracy, metric, *found])
    header = (*places, *figures, "metric", "score", "score_low", "score_high")
    return Table(header, rows).csv()


def breakdowns_markdown(cells: Sequence[CellSummary]) -> str:
    """A Markdown table per group: cells down, values across with the number of their questions."""
    texts = []
    for table in breakdowns(cells):
        header = ["cell", *(f"{column.name} ({column.count})" for column in table.columns)]
        rows = [[row.name, *(entry.text for entry in row.entries)] for row in table.rows]
        texts.append(f"### {markdown_text(table.name)}\n\n{Table(header, rows).markdown()}")
    what = headline_title(cells)
    what = what.capitalize() if what == ACCURACY.title else "Scores"
    return "\n\n".join([f"{what} in %, in brackets the number of questions.", *texts])


def _by_table(cell: CellSummary, metric: str) -> dict[_Place, Mapping[str, Estimate]]:
    """Table -> value -> estimate; two groups at once make a table per outer value."""
    crossed: dict[_Place, Mapping[str, Estimate]] = {
        (((outer, value),), inner): found
        for outer, values in (cell.cross if metric == cell.metric else {}).items()
        for value, groups in values.items()
        for inner, found in groups.items()
    }
    found_by = sorted(cell.scores_by.get(metric, {}).items())
    return {**{((), name): found for name, found in found_by}, **crossed}


def _breakdown(
    name: str,
    place: _Place,
    cells: Sequence[CellSummary],
    found: Sequence[Mapping[str, Estimate]],
) -> Breakdown:
    """One table: a row per cell, a column per value that any of them has."""
    values = sorted({value for by_value in found for value in by_value})
    counts = [
        max(by_value[value].num_questions for by_value in found if value in by_value)
        for value in values
    ]
    shares = [one.value for by_value in found for one in by_value.values()]
    span = (min(shares), max(shares))
    return Breakdown(
        name,
        columns=tuple(map(Column, values, counts)),
        rows=tuple(
            BreakdownRow(
                cell,
                label,
                tuple(
                    _entry(by_value.get(value), span, (*place[0], (place[1], value)))
                    for value in values
                ),
            )
            for cell, label, by_value in zip(cells, labels(cells), found, strict=True)
        ),
    )


def _entry(estimate: Estimate | None, span: tuple[float, float], groups: Groups) -> Entry:
    """One value, coloured by where it lies between the lowest and the highest of the table."""
    if estimate is None:
        return Entry(DASH, "no question")
    low, high = span
    return Entry(
        percent(estimate.value),
        f"{interval(estimate)} %, n = {estimate.num_questions}",
        round(4 + 36 * (estimate.value - low) / max(high - low, 0.01)),
        groups,
    )


def _with_mean(table: Breakdown, cells: Sequence[CellSummary]) -> Breakdown:
    """The table with the mean over its values as a last column."""
    asked = max(cell.counts.num_scored for cell in cells)
    return replace(
        table,
        columns=(*table.columns, Column(_mean_name(cells[0].benchmark), asked)),
        rows=tuple(
            BreakdownRow(
                row.cell,
                row.name,
                (*row.entries, Entry(percent(cell.macro), "mean of the columns")),
            )
            for row, cell in zip(table.rows, cells, strict=True)
        ),
    )


def _mean_name(benchmark: str) -> str:
    """`mean`, with the name that the benchmark's authors give it."""
    title = facts_of(benchmark).macro_title
    return f"mean ({title})" if title else "mean"


def _long_form(cell: CellSummary) -> Iterator[tuple[tuple[str, ...], tuple[float | None, ...]]]:
    """Group, value, inner group, inner value, metric; number of questions, value, interval."""
    for metric, groups in cell.scores_by.items():
        for group, values in groups.items():
            for value, estimate in values.items():
                yield (group, value, "", "", metric), _figures(estimate)
            averaged = group == facts_of(cell.benchmark).macro_group
            if averaged and metric == cell.metric and cell.macro is not None:
                figures = (cell.counts.num_scored, cell.macro, None, None)
                yield (group, _mean_name(cell.benchmark), "", "", metric), figures
    for group, outer_values in cell.cross.items():
        for value, inner_groups in outer_values.items():
            for inner, inner_values in inner_groups.items():
                for inner_value, estimate in inner_values.items():
                    yield (group, value, inner, inner_value, cell.metric), _figures(estimate)


def _figures(estimate: Estimate) -> tuple[float | None, ...]:
    """Number of questions (or groups of them), value and its interval."""
    return estimate.num_questions, estimate.value, estimate.low, estimate.high


def differences_csv(cells: Sequence[CellSummary]) -> str:
    """Every difference by group, unrounded, as shares.

    `p_value_holm` is corrected for the `num_comparisons` of the row's benchmark, metric and group.
    An interval with `too_few_clips` is wider than it need be.
    """
    rows = [
        {
            **_place_of(member.cell),
            "method": member.cell.method,
            "retention": member.cell.retention_requested,
            "metric": family.metric,
            "group": family.group,
            "value": member.value,
            "num_questions": member.paired.num_questions,
            "num_clips": member.paired.num_clips,
            "num_gained": member.paired.num_gained,
            "num_lost": member.paired.num_lost,
            "difference": member.paired.difference,
            "difference_low": member.paired.low,
            "difference_high": member.paired.high,
            "too_few_clips": member.paired.too_few_clips,
            "p_value": member.paired.p_value,
            "num_comparisons": len(family.members),
            "p_value_holm": member.p_value,
        }
        for family in families_of(cells)
        for member in family.members
    ]
    return Table.of(rows).csv() if rows else ""


def all_scores(cells: Sequence[CellSummary]) -> Table:
    """The table for readers; without rows where every benchmark has its headline alone."""
    rows = [
        (
            label,
            metric_title(cell, name),
            estimate_percent(found),
            interval(found, unknown=DASH),
            f"{found.num_questions:,}",
            difference_with_interval(versus),
            p_value(versus),
        )
        for label, cell in zip(labels(cells), cells, strict=True)
        if len(cell.scores) > 1
        for name, found, versus in _metrics(cell)
    ]
    header = ("cell", "metric", "%", "95 % interval", "n", "vs full", "p")
    return Table(header, rows, text_columns=2)


def scores_markdown(cells: Sequence[CellSummary]) -> str:
    """A GitHub-flavoured Markdown table of them."""
    return all_scores(cells).markdown()


def scores_csv(cells: Sequence[CellSummary]) -> str:
    """Every metric of every cell, unrounded, as shares; empty where there is no comparison."""
    rows = []
    for cell in cells:
        for name, found, versus in _metrics(cell):
            paired = versus.paired if versus else None
            rows.append(
                {
                    **_place_of(cell),
                    "metric": name,
                    "n": found.num_questions,
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "versus_full": paired.difference if paired else None,
                    "versus_full_low": paired.low if paired else None,
                    "versus_full_high": paired.high if paired else None,
                    "versus_full_p": paired.p_value if paired else None,
                }
            )
    return Table.of(rows).csv()


def _place_of(cell: CellSummary) -> dict[str, object]:
    return {
        "run_id": cell.run_id,
        "model": cell.model,
        "benchmark": cell.benchmark,
        "cell": cell.name,
    }


def _metrics(cell: CellSummary) -> Iterator[tuple[str, Estimate, Comparison | None]]:
    """Every metric of a cell with its value and its comparison with all tokens."""
    versus = cell.versus_full
    for name, found in cell.scores.items():
        if versus is None or name == cell.metric:
            yield name, found, versus
        else:
            yield name, found, Comparison(versus.also.get(name))
