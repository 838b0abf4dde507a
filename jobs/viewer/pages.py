"""The page's data in pieces: runs and columns, parts of the list, single clips, token sets.

The page itself filters and sorts the list (`site/query.js`), with a server and in an export. The
list is stored in columns, separate from questions' text and replies, so that a filter by outcome
reads no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.results.quantities import Json
from jobs.viewer.drawings import TokenDrawing, TokenSets
from jobs.viewer.frames import PER_SPRITE, View, view_of
from jobs.viewer.index import NOT_ASKED, OUTCOMES, SHOWN, STATUSES, QuestionIndex
from pipeline.redaction import redacted
from tango_core.benchmarks.scoring.spans import span_text
from tango_core.printable import printable

PAGE = 50
LIST_ROWS = 20_000
WORD_ROWS = 500
SORTS = ("order", "video", "id", "rights", "text")
NO_WORDS = (
    "The run has no record of its questions, and its benchmark's files are missing, so the text of "
    "the questions and the video file are unknown. Runs of this version record both."
)
# A group with more values than this is treated as an id, not offered as a filter.
_MOST_VALUES = 60


class NoSuchPieceError(LookupError):
    """The runs have no such clip or piece of data."""


@dataclass(frozen=True)
class TokenView:
    """A token set with the frames that it is drawn over."""

    drawing: TokenDrawing
    view: View

    def to_json(self, urls: Sequence[str], missing: str | None = None) -> Json:
        """JSON for the page.

        Args:
            urls: URLs of the pictures.
            missing: Reason why there are no pictures; `None` if there are.
        """
        times = [round(time, 4) for time in self.view.times]
        view = {"times": times, "per": PER_SPRITE, "urls": list(urls), "missing": missing}
        return {"drawing": self.drawing.to_json(), "view": view}


class Pages:
    """Provides the data of the page.

    Args:
        index: Index of the questions.
        cache: Value of `--cache`; `None` for the caches named by the runs.
    """

    def __init__(self, index: QuestionIndex, cache: str | None = None) -> None:
        self.index = index
        groups = index.runs.groups
        self._sets = [TokenSets(group.cache_roots(cache)) for group in groups]

    def num_pieces(self) -> dict[str, int]:
        """Number of pieces of every kind that `piece` provides."""
        number = self.index.num_questions
        return {
            "start": 1,
            "list": -(-number // LIST_ROWS),
            "words": -(-number // WORD_ROWS),
            "replies": -(-number // WORD_ROWS),
            "videos": 1,
            "clips": self.index.num_clips,
        }

    def piece(self, kind: str, number: int) -> object:
        """One piece of the data.

        Raises:
            NoSuchPieceError: If there is no such piece.
        """
        if number >= self.num_pieces().get(kind, 0):
            raise NoSuchPieceError(f"there is no {kind} {number}")
        if kind == "start":
            return self.contents()
        if kind == "clips":
            return self.clip(number)
        if kind == "videos":
            rows = self.index.rows("SELECT benchmark, video FROM clips ORDER BY clip")
            return [[row["benchmark"], row["video"]] for row in rows]
        if kind == "replies":
            return self._replies(number * WORD_ROWS)
        names, size = ("id", "text", "options", "video"), WORD_ROWS
        if kind == "list":
            names, size = ("clip", "benchmark", "kind", "outcomes"), LIST_ROWS
        rows = self.index.rows(
            f"SELECT {', '.join(names)} FROM questions WHERE question >= ? AND question < ? "
            "ORDER BY question",
            [number * size, (number + 1) * size],
        )
        return {name: [row[name] for row in rows] for name in names}

    def contents(self) -> Json:
        """Data loaded at the start of a session: runs, columns, benchmarks, groups."""
        index = self.index
        groups: dict[str, list[str]] = {}
        for name, value in sorted({pair for kind in index.kinds for pair in kind.items()}):
            groups.setdefault(name, []).append(value)
        benchmarks = index.rows(
            "SELECT benchmark, count(*) AS n FROM questions GROUP BY benchmark "
            "ORDER BY min(question)"
        )
        return {
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
                    "layers": column.first.mean_layer_share,
                    "baseline": column.baseline,
                    **self._counts(number),
                }
                for number, column in enumerate(index.runs.columns, start=1)
            ],
            "benchmarks": [[row["benchmark"], row["n"]] for row in benchmarks],
            "groups": {
                name: values for name, values in groups.items() if len(values) <= _MOST_VALUES
            },
            "kinds": [list(kind.items()) for kind in index.kinds],
            "outcomes": OUTCOMES,
            "statuses": STATUSES,
            "sorts": list(SORTS),
            "missing": [] if index.has_words else [NO_WORDS],
        }

    def _counts(self, column: int) -> dict[str, int]:
        """Number of correct answers and of questions of a column, counted from 1."""
        (row,) = self.index.rows(
            "SELECT count(*) FILTER (letter IN ('R', 'r')) AS num_right, "
            f"count(*) FILTER (letter <> '{NOT_ASKED}') AS asked "
            "FROM (SELECT substr(outcomes, ?, 1) AS letter FROM questions)",
            [column],
        )
        return {"right": row["num_right"], "asked": row["asked"]}

    def _replies(self, start: int) -> Json:
        """Replies to some questions: the distinct texts, and the index of each column's text."""
        rows = self.index.rows(
            "SELECT question, col, text FROM answers WHERE question >= ? AND question < ? "
            "AND col >= 0 AND text <> ''",
            [start, start + WORD_ROWS],
        )
        number = min(WORD_ROWS, self.index.num_questions - start)
        texts: dict[str, int] = {}
        of = [[-1] * len(self.index.runs.columns) for _ in range(number)]
        for row in rows:
            shown = printable(redacted(row["text"]))
            of[row["question"] - start][row["col"]] = texts.setdefault(shown, len(texts))
        return {"texts": list(texts), "of": of}

    def clip(self, clip: int) -> Json:
        """Questions and answers of a clip.

        Raises:
            NoSuchPieceError: If there is no such clip.
        """
        names, asked = self._names(clip), self._asked(clip)
        # Free-form answers are scored only in some runs, but the question's text is equal in all.
        words = {
            one["id"]: one for row in reversed(list(asked.values())) for one in row["questions"]
        }
        questions = self.index.rows(
            "SELECT question, id, kind, outcomes FROM questions WHERE clip = ? ORDER BY question",
            [clip],
        )
        answers = self.index.rows("SELECT * FROM answers WHERE clip = ?", [clip])
        return {
            "clip": clip,
            **names,
            "sources": [
                {
                    "group": group,
                    "path": row["path"],
                    "bounds": [row["clip_start"], row["clip_end"]],
                }
                for group, row in asked.items()
            ],
            "missing": [] if words else [NO_WORDS],
            "questions": [
                _question(row, words.get(row["id"], {}), self.index.kinds[row["kind"]], answers)
                for row in questions
            ],
        }

    def _names(self, clip: int) -> dict[str, str]:
        """Benchmark and video of a clip."""
        rows = self.index.rows("SELECT benchmark, video FROM clips WHERE clip = ?", [clip])
        if not rows:
            raise NoSuchPieceError(f"there is no clip {clip}; there are {self.index.num_clips}")
        return rows[0]

    def _asked(self, clip: int) -> dict[int, dict[str, Any]]:
        """Recorded questions about a clip, by group of runs."""
        rows = self.index.rows("SELECT * FROM asked WHERE clip = ? ORDER BY grp", [clip])
        return {row["grp"]: {**row, "questions": json.loads(row["questions"])} for row in rows}

    def tokens(self, clip: int, number: int) -> TokenView | str:
        """Token set and frames of a clip for a column, or the reason why they are missing.

        Raises:
            NoSuchPieceError: If there is no such clip or column.
        """
        columns = self.index.runs.columns
        if number >= len(columns):
            raise NoSuchPieceError(f"there is no column {number}; there are {len(columns)}")
        column, benchmark = columns[number], self._names(clip)["benchmark"]
        if benchmark not in column.cells:
            return f"This cell was not run on {benchmark}."
        cache, asked = column.cells[benchmark].cache, self._asked(clip).get(column.group)
        if asked is None:
            return NO_WORDS
        sets = self._sets[column.group]
        drawing = sets.drawing(cache, asked["clip_key"] or "")
        if isinstance(drawing, str):
            return drawing
        times = drawing.plan.timestamps.tolist()
        return TokenView(drawing, view_of(asked, sets.sampling_of(cache), times))


def _question(
    row: dict[str, Any],
    words: dict[str, Any],
    groups: dict[str, str],
    answers: Sequence[dict[str, Any]],
) -> Json:
    """One question with its answers by column."""
    own = [answer for answer in answers if answer["question"] == row["question"]]
    right = next((a["answer"] for a in own if a["answer"] is not None), None)
    return {
        "question": row["question"],
        "id": row["id"],
        "text": printable(words.get("text", "")),
        "choices": [printable(choice) for choice in words.get("choices", [])],
        "answer": words.get("answer", right),
        "accepted": [printable(one) for one in words.get("accepted", [])],
        "span": span_text((span[0], span[1])) if (span := words.get("span")) else None,
        "groups": list(groups.items()),
        "outcomes": row["outcomes"],
        "answers": {
            str(answer["col"]): {
                name: _shown(answer[name]) for name in SHOWN if answer[name] is not None
            }
            for answer in own
            if answer["col"] >= 0 and row["outcomes"][answer["col"]] != NOT_ASKED
        },
    }


def _shown(value: Any) -> Any:
    """Convert a value to JSON: redact secrets, remove control characters, shorten numbers."""
    if isinstance(value, str):
        return printable(redacted(value))
    return round(value, 3) if isinstance(value, float) else value
