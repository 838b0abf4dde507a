"""Tables of scores and differences by group of questions, and of all metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from jobs.report import formatting as fmt
from jobs.report.tables.cells import labels
from jobs.results.answer_columns import OK, AnswerColumns, read_groups
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.comparisons import differences_by_group
from jobs.results.quantities import Comparison
from tango_core.benchmarks import facts_of
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, Estimate
from tango_core.metrics.comparison import LEVEL

# (name, value) pairs of the groups of questions.
Groups = tuple[tuple[str, str], ...]
# Metric of a cell, groups that all questions have, and a further group.
_Part = tuple[str, Groups, str]


def _parts(cell: CellSummary) -> dict[_Part, Mapping[str, Estimate]]:
    """All scores by group; nested groups give one part per value of the outer group."""
    found: dict[_Part, Mapping[str, Estimate]] = {}
    for metric, groups in cell.scores_by.items():
        found |= {(metric, (), group): values for group, values in sorted(groups.items())}
        for outer, by_value in (cell.cross if metric == cell.metric else {}).items():
            for value, inner in by_value.items():
                found |= {(metric, ((outer, value),), name): own for name, own in inner.items()}
    return found


def breakdowns(cells: Sequence[CellSummary]) -> list[tuple[str, fmt.Table]]:
    """Title and table per benchmark, metric and group: a row per cell, a column per value.

    Where the benchmark's authors average over the values, a last column has the mean.
    """
    alone = all(set(cell.scores_by) <= {ACCURACY.name} for cell in cells)
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in cells))
    tables = []
    for benchmark in benchmarks:
        own = [cell for cell in cells if cell.benchmark == benchmark]
        parts = [_parts(cell) for cell in own]
        for part in dict.fromkeys(key for found in parts for key in found):
            metric, outer, group = part
            estimates = [found.get(part, {}) for found in parts]
            counts = {
                value: max(one[value].num_questions for one in estimates if value in one)
                for value in sorted({value for one in estimates for value in one})
            }
            name = ", ".join([*(f"{key} {value}" for key, value in outer), group])
            name = f"{benchmark}: {name}" if len(benchmarks) > 1 else name
            name = name if alone else f"{name}, {metric_title(own[0], metric)}"
            header = ["cell", *(f"{value} ({count})" for value, count in counts.items())]
            rows = [
                [label, *(fmt.estimate_percent(one.get(value)) for value in counts)]
                for label, one in zip(labels(own), estimates, strict=True)
            ]
            if mean := _mean_name(own[0], part):
                header.append(f"{mean} ({max(cell.counts.num_scored for cell in own)})")
                for cell, row in zip(own, rows, strict=True):
                    row.append(fmt.percent(cell.macro))
            tables.append((name, fmt.Table(header, rows)))
    return tables


def breakdown_files(cells: Sequence[CellSummary]) -> dict[str, str]:
    """Names and contents of the files with scores and differences by group."""
    what = headline_title(cells)
    what = what.capitalize() if what == ACCURACY.title else "Scores"
    texts = [
        f"### {fmt.markdown_text(name)}\n\n{one.markdown()}" for name, one in breakdowns(cells)
    ]
    texts.insert(0, f"{what} in %, in brackets the number of questions.")
    files = {"breakdowns.md": "\n\n".join(texts), "breakdowns.csv": breakdowns_csv(cells)}
    if any(len(cell.scores) > 1 for cell in cells):
        files |= {"scores.md": all_scores(cells).markdown(), "scores.csv": scores_csv(cells)}
    differences = differences_by_group(cells)
    if len(differences):
        table = fmt.Table(list(differences.columns), differences.astype(object).to_numpy().tolist())
        files["differences_by_group.csv"] = table.csv()
    return files


def _mean_name(cell: CellSummary, part: _Part) -> str:
    """Title of the mean over a group's values, with its name in papers; "" if not averaged."""
    facts = facts_of(cell.benchmark)
    if part != (cell.metric, (), facts.macro_group):
        return ""
    return f"mean ({facts.macro_title})" if facts.macro_title else "mean"


def breakdowns_csv(cells: Sequence[CellSummary]) -> str:
    """All breakdowns as CSV, unrounded; inner columns are empty for tables of a single group.

    Accuracy columns are empty for other metrics. The row of the mean over a group's values has the
    value `mean` with its name, and no interval.
    """
    rows = []
    for cell in cells:
        for part, values in _parts(cell).items():
            metric, outer, group = part
            found = {value: _figures(one) for value, one in values.items()}
            if mean := _mean_name(cell, part):
                found[mean] = (cell.counts.num_scored, cell.macro, None, None)
            for value, (count, *figures) in found.items():
                place = (*outer[0], group, value) if outer else (group, value, "", "")
                accuracy = figures if metric == ACCURACY.name else [None] * 3
                rows.append([*_place_of(cell).values(), *place, count, *accuracy, metric, *figures])
    header = (
        *("run_id", "model", "benchmark", "cell", "group", "value", "inner_group", "inner_value"),
        *("num_questions", "accuracy", "accuracy_low", "accuracy_high"),
        *("metric", "score", "score_low", "score_high"),
    )
    return fmt.Table(header, rows).csv()


def _figures(estimate: Estimate) -> tuple[float | None, ...]:
    return estimate.num_questions, estimate.value, estimate.low, estimate.high


def differences(cells: Sequence[CellSummary]) -> list[tuple[str, fmt.Table]]:
    """Title and table per benchmark, metric and group: a row per cell and value."""
    found = differences_by_group(cells)
    tables = []
    for key, own in found.groupby(["benchmark", "metric", "group"], sort=False):
        significant = (own["p_value_holm"] < LEVEL).sum()
        what = f"{len(own):,} comparisons, {significant:,} significant after Holm's correction"
        few = own["too_few_clips"].astype(bool)
        low, high = (own[f"difference_{end}"].map(fmt.points) for end in ("low", "high"))
        columns = {
            "cell": own["cell"],
            "value": own["value"],
            "n": own["num_questions"].map("{:,}".format),
            "vs full, points": own["difference"].map(fmt.points),
            "95 % interval": (low + " to " + high).mask(few, "too few clips"),
            "p (Holm)": own["p_value_holm"].map(fmt.corrected_p),
        }
        rows = pd.DataFrame(columns).to_numpy().tolist()
        tables.append((f"{', '.join(map(str, key))}: {what}", fmt.Table(list(columns), rows, 2)))
    return tables


def all_scores(cells: Sequence[CellSummary]) -> fmt.Table:
    """Table of all metrics; without rows if every benchmark has only its headline metric."""
    header = ("cell", "metric", "%", "95 % interval", "n", "vs full", "p")
    rows = []
    for label, cell in zip(labels(cells), cells, strict=True):
        for name, found, versus in _metrics(cell) if len(cell.scores) > 1 else ():
            ends, count = fmt.interval(found, unknown=fmt.DASH), f"{found.num_questions:,}"
            paired = fmt.difference_with_interval(versus), fmt.p_value(versus)
            title = metric_title(cell, name)
            rows.append((label, title, fmt.estimate_percent(found), ends, count, *paired))
    return fmt.Table(header, rows, text_columns=2)


def scores_csv(cells: Sequence[CellSummary]) -> str:
    """All metrics of all cells as CSV, unrounded, as shares; empty without a comparison."""
    ends = {"": "difference", "_low": "low", "_high": "high", "_p": "p_value"}
    rows = [
        {
            **_place_of(cell),
            "metric": name,
            **dict(zip(("n", "value", "low", "high"), _figures(found), strict=True)),
            **{f"versus_full{end}": getattr(versus.paired, f, None) for end, f in ends.items()},
        }
        for cell in cells
        for name, found, versus in _metrics(cell)
    ]
    return fmt.Table.of(rows).csv()


def _place_of(cell: CellSummary) -> dict[str, object]:
    names = {"run_id": cell.run_id, "model": cell.model}
    return {**names, "benchmark": cell.benchmark, "cell": cell.name}


def _metrics(cell: CellSummary) -> Iterator[tuple[str, Estimate, Comparison]]:
    """Every metric of a cell with its value and its comparison with `full`."""
    versus = cell.versus_full or Comparison()
    for name, found in cell.scores.items():
        yield name, found, versus if name == cell.metric else Comparison(versus.also.get(name))


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
    rows: pd.DataFrame = answers.table.to_pandas().reindex(columns=[*_PAIR, "groups"])
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
