"""Tables of scores by group of questions, of all metrics, and of confused options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from jobs.report import formatting as fmt
from jobs.report.tables.cells import labels
from jobs.results.answer_columns import OK, AnswerColumns, read_groups
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from tango_core.benchmarks import facts_of
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, Estimate


class _Score(NamedTuple):
    """A metric on the questions with one value of a group; a mean over the values has no ends."""

    num: int
    value: float | None
    low: float | None = None
    high: float | None = None


# Metric of a cell, group and value that all questions have or "", and a further group.
_Part = tuple[str, tuple[str, str], str]
_ALL = ("", "")


def _mean_title(benchmark: str) -> str:
    """Title of the mean over a group's values, with its name in papers."""
    title = facts_of(benchmark).macro_title
    return f"mean ({title})" if title else "mean"


def _parts(cell: CellSummary) -> dict[_Part, dict[str, _Score]]:
    """All scores by group; nested groups give one part per value of the outer group.

    Where the benchmark's authors average over the values, the last one is the mean.
    """
    estimates: dict[_Part, Mapping[str, Estimate]] = {}
    for metric, groups in cell.scores_by.items():
        estimates |= {(metric, _ALL, group): values for group, values in sorted(groups.items())}
        for outer, by_value in (cell.cross if metric == cell.metric else {}).items():
            for value, inner in by_value.items():
                estimates |= {(metric, (outer, value), name): own for name, own in inner.items()}
    found = {
        part: {v: _Score(e.num_questions, e.value, e.low, e.high) for v, e in values.items()}
        for part, values in estimates.items()
    }
    averaged = found.get((cell.metric, _ALL, facts_of(cell.benchmark).macro_group or ""))
    if averaged is not None:
        averaged[_mean_title(cell.benchmark)] = _Score(cell.counts.num_scored, cell.macro)
    return found


def breakdowns(cells: Sequence[CellSummary]) -> list[tuple[str, fmt.Table]]:
    """Title and table per benchmark, metric and group: a row per cell, a column per value."""
    alone = all(set(cell.scores_by) <= {ACCURACY.name} for cell in cells)
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    tables = []
    for benchmark in benchmarks:
        own = [cell for cell in cells if cell.benchmark == benchmark]
        mean, parts = _mean_title(benchmark), [_parts(cell) for cell in own]
        for part in dict.fromkeys(key for found in parts for key in found):
            metric, outer, group = part
            scores = [found.get(part, {}) for found in parts]
            values = sorted({v for one in scores for v in one}, key=lambda v: (v == mean, v))
            counts = [max(one[v].num for one in scores if v in one) for v in values]
            name = f"{outer[0]} {outer[1]}, {group}" if outer != _ALL else group
            name = f"{benchmark}: {name}" if len(benchmarks) > 1 else name
            name = name if alone else f"{name}, {metric_title(own[0], metric)}"
            header = ["cell", *(f"{v} ({count})" for v, count in zip(values, counts, strict=True))]
            rows = [
                [label, *(fmt.percent(one[v].value if v in one else None) for v in values)]
                for label, one in zip(labels(own), scores, strict=True)
            ]
            tables.append((name, fmt.Table(header, rows)))
    return tables


def breakdown_files(cells: Sequence[CellSummary]) -> dict[str, str]:
    """Names and contents of the files with scores by group, and of all metrics."""
    what = headline_title(cells)
    what = what.capitalize() if what == ACCURACY.title else "Scores"
    texts = [
        f"### {fmt.markdown_text(name)}\n\n{one.markdown()}" for name, one in breakdowns(cells)
    ]
    texts.insert(0, f"{what} in %, in brackets the number of questions.")
    files = {"breakdowns.md": "\n\n".join(texts), "breakdowns.csv": breakdowns_csv(cells)}
    if any(len(cell.scores) > 1 for cell in cells):
        files |= {"scores.md": all_scores(cells).markdown(), "scores.csv": scores_csv(cells)}
    return files


def breakdowns_csv(cells: Sequence[CellSummary]) -> str:
    """All breakdowns as CSV, unrounded; inner columns are empty for tables of a single group.

    Accuracy columns are empty for other metrics. The row of the mean over a group's values has the
    value `mean` with its name, and no interval.
    """
    rows: list[list[object]] = []
    for cell in cells:
        for (metric, outer, group), values in _parts(cell).items():
            for value, (count, *figures) in values.items():
                place = (group, value, *_ALL) if outer == _ALL else (*outer, group, value)
                accuracy = figures if metric == ACCURACY.name else [None] * 3
                rows.append([*_place_of(cell).values(), *place, count, *accuracy, metric, *figures])
    header = (
        *("run_id", "model", "benchmark", "cell", "group", "value", "inner_group", "inner_value"),
        *("num_questions", "accuracy", "accuracy_low", "accuracy_high"),
        *("metric", "score", "score_low", "score_high"),
    )
    return fmt.Table(header, rows).csv()


def all_scores(cells: Sequence[CellSummary]) -> fmt.Table:
    """Table of all metrics; without rows if every benchmark has only its headline metric."""
    header = ("cell", "metric", "%", "95 % interval", "n", "vs full", "p")
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        for name, found in cell.scores.items() if len(cell.scores) > 1 else ():
            paired = cell.paired_in(name)
            ends, count = fmt.interval(found, unknown=fmt.DASH), f"{found.num_questions:,}"
            versus = fmt.difference_with_interval(paired), fmt.p_value(paired)
            title = metric_title(cell, name)
            rows.append((label, title, fmt.estimate_percent(found), ends, count, *versus))
    return fmt.Table(header, rows, text_columns=2)


def scores_csv(cells: Sequence[CellSummary]) -> str:
    """All metrics of all cells as CSV, unrounded, as shares; empty without a comparison."""
    names = {"num_questions": "n", "value": "value", "low": "low", "high": "high"}
    ends = {"": "difference", "_low": "low", "_high": "high", "_p": "p_value"}
    rows = []
    for cell in cells:
        for name, found in cell.scores.items():
            paired = cell.paired_in(name)
            row = {**_place_of(cell), "metric": name}
            row |= {column: getattr(found, figure) for figure, column in names.items()}
            row |= {f"versus_full{end}": getattr(paired, f, None) for end, f in ends.items()}
            rows.append(row)
    return fmt.Table.of(rows).csv()


def _place_of(cell: CellSummary) -> dict[str, object]:
    names = {"run_id": cell.run_id, "model": cell.model}
    return {**names, "benchmark": cell.benchmark, "cell": cell.name}


NO_OPTION = "no option"
_SHOWN = 3
_PAIR = ["benchmark", "cell", "value", "answer_text", "choice_text"]


def confusion_table(
    cells: Sequence[CellSummary], runs: Sequence[Iterable[pa.Table]], group: str
) -> fmt.Table:
    """Count every pair of correct option and reply, including correct replies.

    A failed answer, or a reply without an option, counts as `no option`.

    Args:
        cells: Cells of all runs.
        runs: The answers of every run.
        group: Group of the questions, e.g. `"type"`.

    Returns:
        Columns `cell`, `value` (of the group), `right`, `reply` and `count`; in the order of
        `cells`, then by value and decreasing count.

    Raises:
        InputError: If no question has the group, or option texts are not recorded.
    """
    parts = [_pairs(table, group).assign(run=at) for at, run in enumerate(runs) for table in run]
    found = pd.concat(parts)
    if not found["value"].notna().any():
        known = {name for text in found["groups"].unique() for name in read_groups(text)}
        raise InputError(
            f"--confusion {group!r} is no group of these questions; choose one of: "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    if not found["answer_text"].notna().any():
        raise InputError(
            "the answers hold no texts of options: they were written by an earlier version; run "
            "again for --confusion"
        )
    counts = found.groupby(["run", *_PAIR]).size().rename("count").reset_index()
    order = ["value", "count", "answer_text", "choice_text"]
    counts = counts.sort_values(order, ascending=[True, False, True, True])
    names = pd.DataFrame(
        {
            "label": labels(cells),
            "run": pd.factorize(np.array([cell.run_id for cell in cells]))[0],
            "benchmark": [cell.benchmark for cell in cells],
            "cell": [cell.name for cell in cells],
        }
    )
    rows = names.merge(counts, on=["run", "benchmark", "cell"])[["label", *_PAIR[2:], "count"]]
    header = ("cell", "value", "right", "reply", "count")
    return fmt.Table(header, rows.to_numpy().tolist())


def _pairs(table: pa.Table, group: str) -> pd.DataFrame:
    """Value of a group, right option and reply of every answer, and its groups."""
    answers = AnswerColumns(table)
    names = [name for name in _PAIR if name != "value"]
    rows: pd.DataFrame = answers.table.select([*names, "groups"]).to_pandas()
    rows["value"] = rows["groups"].map(lambda text: read_groups(text).get(group))
    chosen = rows["choice_text"].where((answers.bits & OK) > 0)
    return rows.assign(choice_text=chosen.astype(object).fillna(NO_OPTION))


def confusion_markdown(table: fmt.Table, group: str) -> str:
    """One row per cell, one column per value: number wrong, and the most frequent mistakes.

    Args:
        table: Result of `confusion_table`.
        group: Name of the group for the heading.
    """
    pairs = pd.DataFrame([dict(zip(table.header, row, strict=True)) for row in table.rows])
    values = sorted(pairs["value"].unique())
    rows = []
    for cell, own in pairs.groupby("cell", sort=False):
        by_value = {value: _entry(part) for value, part in own.groupby("value")}
        rows.append([str(cell), *(by_value.get(value, "0 of 0") for value in values)])
    title = fmt.markdown_text(group)
    text = f"Wrong of asked by `{title}`; the {_SHOWN} most frequent mistakes, right → reply."
    return f"{text}\n\n{fmt.Table(['cell', *values], rows).markdown()}"


def _entry(pairs: pd.DataFrame) -> str:
    """A cell's mistakes on the questions with one value."""
    wrong = pairs[pairs["right"] != pairs["reply"]]
    counts = f"{wrong['count'].sum()} of {pairs['count'].sum()}"
    shown = wrong[["right", "reply", "count"]].head(_SHOWN).itertuples(index=False)
    mistakes = [f"{right} → {reply} {count}" for right, reply, count in shown]
    return f"{counts}: {', '.join(mistakes)}" if mistakes else counts
