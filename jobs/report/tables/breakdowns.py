"""Every break-down of every cell: as tables to read, and in long form for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jobs.report.sections import breakdowns
from jobs.report.tables.cells import markdown_lines
from tango_core.benchmarks import facts_of

MEAN = "mean (M-Avg)"
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


def breakdowns_csv(cells: Sequence[Mapping[str, Any]]) -> str:
    """All break-downs, unrounded; the inner columns are empty where one group is meant.

    MLVU's mean over its tasks has the value `MEAN` and no interval.

    Args:
        cells: Flat summaries with `run_id` and `model`.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_HEADER)
    for cell in cells:
        names = [cell[name] for name in _HEADER[:4]]
        for place, entry in _entries(cell):
            writer.writerow([*names, *place, entry["n"], entry["accuracy"], *entry["ci95"]])
    return stream.getvalue()


def breakdowns_markdown(cells: Sequence[dict[str, Any]]) -> str:
    """A Markdown table per group: cells down, values across with the number of their questions."""
    benchmarks = list(dict.fromkeys(str(cell["benchmark"]) for cell in cells))
    texts = []
    for table in breakdowns(cells, benchmarks):
        header = ["cell", *(f"{head['name']} ({head['count']})" for head in table["heads"])]
        rows = [[row["name"], *(e["text"] for e in row["entries"])] for row in table["rows"]]
        texts.append(f"### {table['name']}\n\n{markdown_lines(header, rows)}")
    return "\n\n".join(["Accuracy in %, in brackets the number of questions.", *texts])


def _entries(cell: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str, str], Any]]:
    """Group, value, inner group, inner value, and the accuracy there."""
    for group, values in cell["accuracy_by"].items():
        for value, entry in values.items():
            yield (group, value, "", ""), entry
        averaged = group == facts_of(str(cell["benchmark"])).macro_group
        if averaged and cell["accuracy_macro"] is not None:
            mean = {"n": cell["num_scored"], "accuracy": cell["accuracy_macro"]}
            yield (group, MEAN, "", ""), {**mean, "ci95": (None, None)}
    for group, values in cell["accuracy_cross"].items():
        for value, inner_groups in values.items():
            for inner, inner_values in inner_groups.items():
                for inner_value, entry in inner_values.items():
                    yield (group, value, inner, inner_value), entry
