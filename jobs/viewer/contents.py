"""The page's data in pieces: runs and columns, parts of the list, single clips.

The page itself filters and sorts the list (`site/query.js`), with a server and in an export. The
list is stored in columns, separate from questions' text and replies, so that a filter by outcome
reads no text.
"""

from __future__ import annotations

from jobs.results.quantities import Json
from jobs.viewer.clips import NO_WORDS, ClipPages, NoSuchClipError
from jobs.viewer.index import NOT_ASKED, OUTCOMES, STATUSES, QuestionIndex
from pipeline.redaction import redacted
from tango_core import __version__
from tango_core.printable import printable

PAGE = 50
LIST_ROWS = 20_000
WORD_ROWS = 500
# Additional outcomes besides the keys of `OUTCOMES`: correct with `full` and wrong here, the
# reverse, and correct in one column and wrong in another.
COMPARED = ("lost", "won", "differ")
SORTS = ("order", "video", "id", "rights", "text")

# A group with more values than this is treated as an id, not offered as a filter.
_MOST_VALUES = 60


def contents(index: QuestionIndex) -> Json:
    """Data loaded at the start of a session: runs, columns, benchmarks, groups."""
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
        "list_rows": LIST_ROWS,
        "word_rows": WORD_ROWS,
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
    """The groups of every kind of question, by index of the kind."""
    found: dict[int, list[list[str]]] = {}
    for row in index.rows("SELECT kind, name, value FROM kinds ORDER BY kind"):
        found.setdefault(row["kind"], []).append([row["name"], row["value"]])
    return [found.get(kind, []) for kind in range(max(found, default=-1) + 1)]


def _right_per_column(index: QuestionIndex) -> list[tuple[int, int]]:
    """Number of correct answers and of questions per column."""
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


def numbers_of(index: QuestionIndex) -> dict[str, int]:
    """Number of pieces of every kind that `piece` provides."""
    return {
        "start": 1,
        "list": -(-index.num_questions // LIST_ROWS),
        "words": -(-index.num_questions // WORD_ROWS),
        "replies": -(-index.num_questions // WORD_ROWS),
        "videos": 1,
        "clips": index.num_clips,
    }


def piece(pages: ClipPages, kind: str, number: int) -> object:
    """One piece of the data.

    Raises:
        NoSuchClipError: If there is no such piece.
    """
    index = pages.index
    if number >= numbers_of(index).get(kind, 0):
        raise NoSuchClipError(f"there is no {kind} {number}")
    if kind == "start":
        return contents(index)
    if kind == "clips":
        return pages.page(number)
    if kind == "videos":
        rows = index.rows("SELECT benchmark, video FROM clips ORDER BY clip")
        return [[row["benchmark"], row["video"]] for row in rows]
    if kind == "replies":
        return _replies(index, number * WORD_ROWS)
    names, size = ("id", "text", "options", "video"), WORD_ROWS
    if kind == "list":
        names, size = ("clip", "benchmark", "kind", "outcomes"), LIST_ROWS
    rows = index.rows(
        f"SELECT {', '.join(names)} FROM questions WHERE question >= ? AND question < ? "
        "ORDER BY question",
        [number * size, (number + 1) * size],
    )
    return {name: [row[name] for row in rows] for name in names}


def _replies(index: QuestionIndex, start: int) -> Json:
    """Replies to some questions: the distinct texts, and the index of each column's text."""
    rows = index.rows(
        "SELECT question, col, text FROM answers WHERE question >= ? AND question < ? AND col >= 0 "
        "AND text <> ''",
        [start, start + WORD_ROWS],
    )
    number = min(WORD_ROWS, index.num_questions - start)
    texts: dict[str, int] = {}
    of = [[-1] * len(index.runs.columns) for _ in range(number)]
    for row in rows:
        shown = printable(redacted(row["text"]))
        of[row["question"] - start][row["col"]] = texts.setdefault(shown, len(texts))
    return {"texts": list(texts), "of": of}
