"""The page's data in pieces, and links to it: runs, parts of the list, single clips, token sets.

The page itself filters and sorts the list (`site/query.js`), with a server and in an export. The
list is stored in columns, separate from questions' text and replies, so that a filter by outcome
reads no text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jobs.results.quantities import Json
from jobs.viewer.frames import NotShownError, View
from jobs.viewer.index import NOT_ASKED, OUTCOMES, SHOWN, STATUSES, QuestionIndex
from pipeline.redaction import redacted
from tango_core.benchmarks.scoring.judge import span_text
from tango_core.printable import printable

if TYPE_CHECKING:
    from jobs.viewer.tokens import ClipTokens, TokenSets

PAGE = 50
LIST_ROWS = 20_000
WORD_ROWS = 500
NO_WORDS = (
    "The run has no record of its questions, as runs of release 0.1, so the text of the questions "
    "and the video files are unknown. A new run of its recipe records both; it reuses the caches."
)
# A group with more values than this is treated as an id, not offered as a filter.
_MOST_VALUES = 60

Pictures = Callable[[View, int], tuple[list[str], str | None]]
"""URLs of the pictures of a view of a column, and the reason if there are none."""


class Pages:
    """Provides the data of the page.

    Args:
        index: Index of the questions.
        cache: Value of `--cache`; `None` for the caches named by the runs.

    Attributes:
        pieces: Kind of data -> number of its pieces, and the function that makes one of them.
    """

    def __init__(self, index: QuestionIndex, cache: str | None = None) -> None:
        self.index = index
        self._given_cache = cache
        self._names = [(printable(name), printable(video)) for name, video in index.clips]
        parts = {size: -(-len(index.questions) // size) for size in (LIST_ROWS, WORD_ROWS)}
        self.pieces: dict[str, tuple[int, Callable[[int], object]]] = {
            "start": (1, lambda _: self.contents()),
            "list": (parts[LIST_ROWS], self._list),
            "words": (parts[WORD_ROWS], self._words),
            "replies": (parts[WORD_ROWS], self._replies),
            "videos": (1, lambda _: self._names),
            "clips": (len(index.clips), self.clip),
        }

    def piece(self, kind: str, number: int) -> object:
        """One piece of the data.

        Raises:
            LookupError: If there is no such piece.
        """
        size, make = self.pieces.get(kind, (0, self.clip))
        if number >= size:
            raise LookupError(f"there is no {kind} {number}")
        return make(number)

    def contents(self) -> Json:
        """Data loaded at the start of a session: runs, columns, benchmarks, groups."""
        index, questions = self.index, self.index.questions
        groups: dict[str, list[str]] = {}
        for name, value in sorted({pair for kind in index.kinds for pair in kind.items()}):
            groups.setdefault(name, []).append(value)
        columns = []
        for number, column in enumerate(index.runs.columns):
            letters = Counter(questions["outcomes"].str[number])
            right = sum(letters[one] for one in OUTCOMES["right"])
            asked = len(questions) - letters[NOT_ASKED]
            columns.append({**column.to_json(), "right": right, "asked": asked})
        return {
            "questions": len(questions),
            "clips": len(index.clips),
            "page": PAGE,
            "list_rows": LIST_ROWS,
            "word_rows": WORD_ROWS,
            "runs": [group.to_json() for group in index.runs.groups],
            "columns": columns,
            "benchmarks": list(Counter(questions["benchmark"]).items()),
            "groups": {
                name: values for name, values in groups.items() if len(values) <= _MOST_VALUES
            },
            "kinds": [list(kind.items()) for kind in index.kinds],
            "outcomes": OUTCOMES,
            "statuses": STATUSES,
            "missing": [] if any(index.asked) else [NO_WORDS],
        }

    def _list(self, number: int) -> Json:
        """Part of the list, without texts."""
        rows = self.index.questions[number * LIST_ROWS : (number + 1) * LIST_ROWS]
        return {name: rows[name].tolist() for name in ("clip", "benchmark", "kind", "outcomes")}

    def _words(self, number: int) -> Json:
        """Texts of some questions."""
        rows = self.index.questions[number * WORD_ROWS : (number + 1) * WORD_ROWS]
        words = {clip: self._asked_words(clip) for clip in rows["clip"].unique()}
        pairs = zip(rows["clip"], rows["id"], strict=True)
        found = [words[clip].get(id_, {}) for clip, id_ in pairs]
        return {
            "id": [printable(id_) for id_ in rows["id"]],
            "text": [printable(one.get("text", "")) for one in found],
            "options": ["\n".join(map(printable, one.get("choices", []))) for one in found],
            "video": [self._names[clip][1] for clip in rows["clip"]],
        }

    def _asked_words(self, clip: int) -> dict[str, Json]:
        """Recorded questions about a clip by id; free-form answers are scored only in some runs."""
        rows = reversed(list(self.index.asked[clip].values()))
        return {one["id"]: one for row in rows for one in json.loads(row["questions"])}

    def _replies(self, number: int) -> Json:
        """Replies to some questions: the distinct texts, and the index of each column's text."""
        start, total = number * WORD_ROWS, len(self.index.questions)
        texts = {"": -1}
        of = []
        for question in range(start, min(start + WORD_ROWS, total)):
            numbers = [-1] * len(self.index.runs.columns)
            for column, answer in self.index.answers(question).items():
                text = printable(redacted(answer["text"] or ""))
                numbers[column] = texts.setdefault(text, len(texts) - 1)
            of.append(numbers)
        return {"texts": list(texts)[1:], "of": of}

    def clip(self, clip: int) -> Json:
        """Questions and answers of a clip."""
        words, sources = self._asked_words(clip), self.index.asked[clip]
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
                for group, row in sources.items()
            ],
            "missing": [] if words else [NO_WORDS],
            "questions": [self._question(int(n), words) for n in self.index.of_clip[clip]],
        }

    def _question(self, number: int, words: dict[str, Json]) -> Json:
        """One question with its answers by column."""
        row, answers = self.index.questions.iloc[number], self.index.answers(number)
        asked = words.get(row.id, {})
        right = next((x["answer"] for x in answers.values() if x["answer"] is not None), None)
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
                for column, one in answers.items()
            },
        }

    @cached_property
    def _sets(self) -> list[TokenSets]:
        """Token sets of every group; torch is imported on first use, after the list is open."""
        from jobs.viewer.tokens import TokenSets

        groups = self.index.runs.groups
        return [TokenSets(one.cache_roots(self._given_cache), one.recipe) for one in groups]

    def tokens(self, clip: int, number: int) -> ClipTokens:
        """Token sets and frames of a clip for a column.

        Raises:
            LookupError: If there is no such clip or column.
            NotShownError: If they are missing.
        """
        column, (benchmark, _) = self.index.runs.columns[number], self.index.clips[clip]
        if benchmark not in column.cells:
            raise NotShownError(f"This cell was not run on {benchmark}.")
        asked = self.index.asked[clip].get(column.group)
        if asked is None:
            raise NotShownError(NO_WORDS)
        return self._sets[column.group].tokens(column.cells[benchmark].cache, asked)

    def all_tokens(self, clip: int, columns: Iterable[int], pictures: Pictures) -> Json:
        """Column -> its token sets and pictures as JSON, or the reason why they are missing.

        Args:
            clip: Number of the clip.
            columns: Numbers of the columns.
            pictures: Finds or makes pictures, once for cells that share frames.

        Raises:
            LookupError: If there is no such clip or column.
        """
        ids = self.index.questions["id"].iloc[self.index.of_clip[clip]].tolist()
        found: Json = {}
        made: dict[View, tuple[list[str], str | None]] = {}
        for column in columns:
            try:
                one = self.tokens(clip, column)
            except NotShownError as error:
                found[str(column)] = {"missing": str(error)}
                continue
            if one.view not in made:
                made[one.view] = pictures(one.view, column)
            found[str(column)] = one.to_json(ids, *made[one.view])
        return found


def _shown(value: Any) -> Any:
    """Convert a value to JSON: redact secrets, remove control characters, shorten numbers."""
    if isinstance(value, str):
        return printable(redacted(value))
    return round(value, 3) if isinstance(value, float) else value


def deep_link(run: str, clip: tuple[str, str], cells: Iterable[str], *, base: str = "") -> str:
    """Link to a clip with some cells side by side.

    Args:
        run: Name of the run directory (`run_id`), to distinguish cells with equal names.
        clip: Benchmark and video id.
        cells: Names of cells, as in the answers' column `cell`.
        base: URL of the viewer or its export, without a fragment, e.g. `"viewer/index.html"` or
            `"http://127.0.0.1:8780/"`.

    Returns:
        `BASE#/clip?benchmark=...&video=...&run=...&cell=...`, safe in an attribute once escaped.
    """
    named = [("benchmark", clip[0]), ("video", clip[1]), ("run", run)]
    pairs = [*named, *(("cell", name) for name in cells)]
    given = [(name, printable(value)) for name, value in pairs if value]
    return f"{base}#/clip?{urlencode(given, quote_via=quote, safe='')}"
