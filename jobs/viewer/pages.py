"""The page's data in pieces: runs and columns, parts of the list, single clips, token sets.

The page itself filters and sorts the list (`site/query.js`), with a server and in an export. The
list is stored in columns, separate from questions' text and replies, so that a filter by outcome
reads no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jobs.results.quantities import Json
from jobs.viewer.index import NOT_ASKED, OUTCOMES, SHOWN, STATUSES, QuestionIndex
from pipeline.redaction import redacted
from tango_core.benchmarks.scoring.spans import span_text
from tango_core.printable import printable

if TYPE_CHECKING:
    from jobs.viewer.frames import View
    from jobs.viewer.tokens import ClipTokens, TokenDrawing, TokenSets

PAGE = 50
LIST_ROWS = 20_000
WORD_ROWS = 500
NO_WORDS = (
    "The run has no record of its questions, as runs of release 0.1, so the text of the questions "
    "and the video files are unknown. A new run of its recipe records both; it reuses the caches."
)
# A group with more values than this is treated as an id, not offered as a filter.
_MOST_VALUES = 60

Pictures = Callable[["View", int], tuple[list[str], str | None]]
"""URLs of the pictures of a view of a column, and the reason if there are none."""


class NoSuchPieceError(LookupError):
    """The runs have no such clip or piece of data."""


@dataclass(frozen=True)
class TokenView:
    """The token sets of a cell on a clip, with the frames that they are drawn over.

    Attributes:
        tokens: The token sets.
        view: The frames.
        of: Of every question about the clip its token set; empty if all share one.
    """

    tokens: ClipTokens
    view: View
    of: list[int] = field(default_factory=list)

    @property
    def drawing(self) -> TokenDrawing:
        """The token set of the first question."""
        return self.tokens.sets[0]

    def to_json(self, urls: list[str], missing: str | None = None) -> Json:
        """JSON for the page.

        Args:
            urls: URLs of the pictures.
            missing: Reason why there are no pictures; `None` if there are.
        """
        from jobs.viewer.frames import PER_SPRITE

        times = [round(time, 4) for time in self.view.times]
        view = {"times": times, "per": PER_SPRITE, "urls": urls, "missing": missing}
        return {"sets": [one.to_json() for one in self.tokens.sets], "of": self.of, "view": view}


class Pages:
    """Provides the data of the page.

    Args:
        index: Index of the questions.
        cache: Value of `--cache`; `None` for the caches named by the runs.
    """

    def __init__(self, index: QuestionIndex, cache: str | None = None) -> None:
        self.index = index
        self._given_cache = cache
        self._names = [(printable(name), printable(video)) for name, video in index.clips]

    @cached_property
    def _sets(self) -> list[TokenSets]:
        """Token sets of every group; torch is imported on first use, after the list is open."""
        from jobs.viewer.tokens import TokenSets

        groups = self.index.runs.groups
        return [TokenSets(one.cache_roots(self._given_cache), one.recipe) for one in groups]

    def num_pieces(self) -> dict[str, int]:
        """Number of pieces of every kind that `piece` provides."""
        number = len(self.index.questions)
        return {
            "start": 1,
            "list": -(-number // LIST_ROWS),
            "words": -(-number // WORD_ROWS),
            "replies": -(-number // WORD_ROWS),
            "videos": 1,
            "clips": len(self.index.clips),
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
            return self._names
        if kind == "replies":
            return self._replies(number * WORD_ROWS)
        return self._list(number) if kind == "list" else self._words(number)

    def contents(self) -> Json:
        """Data loaded at the start of a session: runs, columns, benchmarks, groups."""
        index = self.index
        groups: dict[str, list[str]] = {}
        for name, value in sorted({pair for kind in index.kinds for pair in kind.items()}):
            groups.setdefault(name, []).append(value)
        benchmarks: dict[str, int] = {}
        for question in index.questions:
            name = self._names[question.clip][0]
            benchmarks[name] = benchmarks.get(name, 0) + 1
        return {
            "questions": len(index.questions),
            "clips": len(index.clips),
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
                    **self._counts(number),
                }
                for number, column in enumerate(index.runs.columns)
            ],
            "benchmarks": list(benchmarks.items()),
            "groups": {
                name: values for name, values in groups.items() if len(values) <= _MOST_VALUES
            },
            "kinds": [list(kind.items()) for kind in index.kinds],
            "outcomes": OUTCOMES,
            "statuses": STATUSES,
            "missing": [] if index.has_words else [NO_WORDS],
        }

    def _counts(self, column: int) -> dict[str, int]:
        """Number of correct answers and of questions of a column."""
        letters = [question.outcomes[column] for question in self.index.questions]
        right = sum(map(letters.count, OUTCOMES["right"]))
        return {"right": right, "asked": len(letters) - letters.count(NOT_ASKED)}

    def _list(self, number: int) -> Json:
        """Part of the list, without texts."""
        rows = self.index.questions[number * LIST_ROWS : (number + 1) * LIST_ROWS]
        return {
            "clip": [row.clip for row in rows],
            "benchmark": [self._names[row.clip][0] for row in rows],
            "kind": [row.kind for row in rows],
            "outcomes": [row.outcomes for row in rows],
        }

    def _words(self, number: int) -> Json:
        """Texts of some questions."""
        rows = self.index.questions[number * WORD_ROWS : (number + 1) * WORD_ROWS]
        words = {clip: self._asked_words(clip) for clip in {row.clip for row in rows}}
        found = [words[row.clip].get(row.id, {}) for row in rows]
        return {
            "id": [printable(row.id) for row in rows],
            "text": [printable(one.get("text", "")) for one in found],
            "options": ["\n".join(map(printable, one.get("choices", []))) for one in found],
            "video": [self._names[row.clip][1] for row in rows],
        }

    def _asked_words(self, clip: int) -> dict[str, Json]:
        """Recorded questions about a clip by id; free-form answers are scored only in some runs."""
        rows = reversed(list(self.index.asked(clip).values()))
        return {one["id"]: one for row in rows for one in json.loads(row["questions"])}

    def _replies(self, start: int) -> Json:
        """Replies to some questions: the distinct texts, and the index of each column's text."""
        rows = self.index.questions[start : start + WORD_ROWS]
        answers = self.index.answers(sorted({row.clip for row in rows}))
        texts: dict[str, int] = {}

        def number_of(answer: dict[str, Any] | None) -> int:
            if answer is None or not answer["text"]:
                return -1
            return texts.setdefault(printable(redacted(answer["text"])), len(texts))

        columns = range(len(self.index.runs.columns))
        of = [
            [number_of(answers.get((row.clip, row.id, column))) for column in columns]
            for row in rows
        ]
        return {"texts": list(texts), "of": of}

    def clip(self, clip: int) -> Json:
        """Questions and answers of a clip.

        Raises:
            NoSuchPieceError: If there is no such clip.
        """
        self._raise_if_absent(clip)
        words, answers = self._asked_words(clip), self.index.answers([clip])
        benchmark, video = self._names[clip]
        return {
            "clip": clip,
            "benchmark": benchmark,
            "video": video,
            "sources": [
                {
                    "group": group,
                    # Not the whole path: an export may be published.
                    "path": "/".join(row["path"].rsplit("/", 2)[-2:]),
                    "bounds": [row["clip_start"], row["clip_end"]],
                }
                for group, row in self.index.asked(clip).items()
            ],
            "missing": [] if words else [NO_WORDS],
            "questions": [
                self._question(number, words, answers) for number in self.index.questions_of(clip)
            ],
        }

    def _question(self, number: int, words: dict[str, Json], answers: dict[Any, Json]) -> Json:
        """One question with its answers by column."""
        row = self.index.questions[number]
        asked = words.get(row.id, {})
        own = {
            column: answers[row.clip, row.id, column]
            for column, letter in enumerate(row.outcomes)
            if letter != NOT_ASKED
        }
        right = next((one["answer"] for one in own.values() if one["answer"] is not None), None)
        return {
            "question": number,
            "id": printable(row.id),
            "text": printable(asked.get("text", "")),
            "choices": [printable(choice) for choice in asked.get("choices", [])],
            "answer": asked.get("answer", right),
            "accepted": [printable(one) for one in asked.get("accepted", [])],
            "span": span_text((span[0], span[1])) if (span := asked.get("span")) else None,
            "groups": list(self.index.kinds[row.kind].items()),
            "outcomes": row.outcomes,
            "answers": {
                str(column): {name: _shown(one[name]) for name in SHOWN if one[name] is not None}
                for column, one in own.items()
            },
        }

    def _raise_if_absent(self, clip: int) -> None:
        if clip >= len(self._names):
            raise NoSuchPieceError(f"there is no clip {clip}; there are {len(self._names)}")

    def tokens(self, clip: int, number: int) -> TokenView | str:
        """Token sets and frames of a clip for a column, or the reason why they are missing.

        Raises:
            NoSuchPieceError: If there is no such clip or column.
        """
        from jobs.viewer.frames import view_of

        columns = self.index.runs.columns
        self._raise_if_absent(clip)
        if number >= len(columns):
            raise NoSuchPieceError(f"there is no column {number}; there are {len(columns)}")
        column, benchmark = columns[number], self.index.clips[clip][0]
        if benchmark not in column.cells:
            return f"This cell was not run on {benchmark}."
        cache, asked = column.cells[benchmark].cache, self.index.asked(clip).get(column.group)
        if asked is None:
            return NO_WORDS
        tokens = self._sets[column.group].tokens(cache, asked)
        if isinstance(tokens, str):
            return tokens
        view = view_of(asked, tokens.sampling, tokens.sets[0].plan.timestamps.tolist())
        if not tokens.of:
            return TokenView(tokens, view)
        ids = {one["id"]: at for at, one in enumerate(json.loads(asked["questions"]))}
        questions = (self.index.questions[one] for one in self.index.questions_of(clip))
        return TokenView(tokens, view, [tokens.of.get(ids.get(one.id, -1), 0) for one in questions])

    def all_tokens(self, clip: int, columns: Iterable[int], pictures: Pictures) -> Json:
        """Column -> its token sets and pictures as JSON, or the reason why they are missing.

        Args:
            clip: Number of the clip.
            columns: Numbers of the columns.
            pictures: Finds or makes pictures, once for cells that share frames.

        Raises:
            NoSuchPieceError: If there is no such clip or column.
        """
        found: Json = {}
        made: dict[View, tuple[list[str], str | None]] = {}
        for column in columns:
            one = self.tokens(clip, column)
            if isinstance(one, str):
                found[str(column)] = {"missing": one}
                continue
            if one.view not in made:
                made[one.view] = pictures(one.view, column)
            found[str(column)] = one.to_json(*made[one.view])
        return found


def _shown(value: Any) -> Any:
    """Convert a value to JSON: redact secrets, remove control characters, shorten numbers."""
    if isinstance(value, str):
        return printable(redacted(value))
    return round(value, 3) if isinstance(value, float) else value
