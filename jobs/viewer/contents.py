"""What the page must know before it shows anything: runs, columns, groups, letters."""

from __future__ import annotations

from jobs.results.quantities import Json
from jobs.viewer.clips import NO_WORDS
from jobs.viewer.index import NOT_ASKED, OUTCOMES, STATUSES, QuestionIndex
from jobs.viewer.query import COMPARED, PAGE, SORTS
from tango_core import __version__

# A group with more values than this is no choice but an id.
_MOST_VALUES = 60


def contents(index: QuestionIndex) -> Json:
    """The beginning of every session."""
    groups: dict[str, list[str]] = {}
    for row in index.rows("SELECT DISTINCT name, value FROM kinds ORDER BY name, value"):
        groups.setdefault(row["name"], []).append(row["value"])
    benchmarks = index.rows(
        "SELECT benchmark, count(*) AS n FROM questions GROUP BY benchmark ORDER BY min(question)"
    )
    shares = _right_per_column(index)
    return {
        "version": __version__,
        "questions": index.num_questions,
        "clips": index.num_clips,
        "page": PAGE,
        "runs": [group.to_json() for group in index.runs.groups],
        "columns": [
            {
                "label": column.label,
                "short": column.short,
                "name": column.name,
                "group": column.group,
                "method": column.first.method,
                "retention": column.first.retention,
                "layers": column.first.mean_layer_share,
                "baseline": column.baseline,
                "right": right,
                "asked": asked,
            }
            for column, (right, asked) in zip(index.runs.columns, shares, strict=True)
        ],
        "benchmarks": [[row["benchmark"], row["n"]] for row in benchmarks],
        "groups": {name: values for name, values in groups.items() if len(values) <= _MOST_VALUES},
        "kinds": _kinds(index),
        "outcomes": OUTCOMES,
        "statuses": STATUSES,
        "compared": list(COMPARED),
        "sorts": list(SORTS),
        "not_asked": NOT_ASKED,
        "missing": [] if index.has_words else [NO_WORDS],
    }


def _kinds(index: QuestionIndex) -> list[list[list[str]]]:
    """The groups of every kind of question, by number."""
    found: dict[int, list[list[str]]] = {}
    for row in index.rows("SELECT kind, name, value FROM kinds ORDER BY kind"):
        found.setdefault(row["kind"], []).append([row["name"], row["value"]])
    return [found.get(kind, []) for kind in range(max(found, default=-1) + 1)]


def _right_per_column(index: QuestionIndex) -> list[tuple[int, int]]:
    """Right answers and questions of every column."""
    columns = range(1, len(index.runs.columns) + 1)
    if not columns:
        return []
    letters = OUTCOMES["right"]
    sums = ", ".join(
        f"count(*) FILTER (substr(outcomes, {at}, 1) IN ('{letters[0]}', '{letters[1]}')), "
        f"count(*) FILTER (substr(outcomes, {at}, 1) <> '{NOT_ASKED}')"
        for at in columns
    )
    (row,) = index.rows(f"SELECT [{sums}] AS counts FROM questions")
    counts = row["counts"]
    return [(counts[2 * at], counts[2 * at + 1]) for at in range(len(columns))]
