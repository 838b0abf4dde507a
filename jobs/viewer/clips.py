"""Data of a clip's page: questions with all answers, token sets, frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.results.facts import CellFacts
from jobs.results.quantities import Json
from jobs.viewer.drawings import TokenDrawing, TokenSets
from jobs.viewer.frames import PER_SPRITE, Clip, FrameDecoder, FramesMissingError
from jobs.viewer.index import NOT_ASKED, SHOWN, QuestionIndex
from pipeline.redaction import redacted
from tango_core.benchmarks.scoring.spans import span_text
from tango_core.printable import printable

NO_WORDS = (
    "The run has no record of its questions, and its benchmark's files are missing, so the text of "
    "the questions and the video file are unknown. Runs of this version record both."
)


class NoSuchClipError(LookupError):
    """No run has questions about the clip."""


@dataclass(frozen=True)
class View:
    """Frames shared by several token sets of a clip.

    Attributes:
        column: Index of the first column with these frames.
        clip: Source of the frames.
        sampling: Settings by which the frames were sampled.
        times: (T,) times in seconds.
    """

    column: int
    clip: Clip
    sampling: tuple[tuple[str, Any], ...]
    times: tuple[float, ...]


@dataclass(frozen=True)
class Seen:
    """Token sets and frames of a clip for the selected columns.

    Attributes:
        drawings: Distinct token sets.
        views: Distinct sets of frames.
        columns: Per column index, the indices of its drawing and view, or the reason why there is
            none.
    """

    drawings: tuple[TokenDrawing, ...]
    views: tuple[View, ...]
    columns: dict[int, tuple[int, int] | str]


class ClipPages:
    """Provides the data of single clips.

    Args:
        index: Index of the questions.
        cache: Value of `--cache`; `None` for the caches named by the runs.
    """

    def __init__(self, index: QuestionIndex, cache: str | None = None) -> None:
        self.index = index
        groups = index.runs.groups
        self._sets = [TokenSets(group.cache_roots(cache)) for group in groups]

    def names(self, clip: int) -> dict[str, str]:
        """Benchmark and video of a clip.

        Raises:
            NoSuchClipError: If there is no such clip.
        """
        rows = self.index.rows("SELECT benchmark, video FROM clips WHERE clip = ?", [clip])
        if not rows:
            raise NoSuchClipError(f"there is no clip {clip}; there are {self.index.num_clips}")
        return rows[0]

    def page(self, clip: int) -> Json:
        """Questions and answers of a clip.

        Raises:
            NoSuchClipError: If there is no such clip.
        """
        names, asked = self.names(clip), self._asked(clip)
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
                _question(row, words.get(row["id"], {}), self._groups(row["kind"]), answers)
                for row in questions
            ],
        }

    def _groups(self, kind: int) -> list[list[str]]:
        """The groups of a question."""
        rows = self.index.rows("SELECT name, value FROM kinds WHERE kind = ?", [kind])
        return [[row["name"], row["value"]] for row in rows]

    def _asked(self, clip: int) -> dict[int, dict[str, Any]]:
        """Recorded questions about a clip, by group of runs."""
        rows = self.index.rows("SELECT * FROM asked WHERE clip = ? ORDER BY grp", [clip])
        return {row["grp"]: {**row, "questions": json.loads(row["questions"])} for row in rows}

    def seen(self, clip: int, columns: Iterable[int]) -> Seen:
        """Token sets and frames of a clip for some columns; each is read once."""
        asked, benchmark = self._asked(clip), self.names(clip)["benchmark"]
        drawings: list[TokenDrawing] = []
        views: list[View] = []
        read: dict[tuple[int, str], tuple[int, int] | str] = {}
        found: dict[int, tuple[int, int] | str] = {}
        for number in columns:
            column = self.index.runs.columns[number]
            cell = column.cells.get(benchmark)
            if cell is None:
                found[number] = f"This cell was not run on {benchmark}."
                continue
            name = (column.group, cell.cache)
            if name not in read:
                row = asked.get(column.group)
                read[name] = self._read(number, cell, row, drawings, views)
            found[number] = read[name]
        return Seen(tuple(drawings), tuple(views), found)

    def _read(
        self,
        number: int,
        cell: CellFacts,
        asked: dict[str, Any] | None,
        drawings: list[TokenDrawing],
        views: list[View],
    ) -> tuple[int, int] | str:
        """Read a token set and add it and its frames to the result."""
        if asked is None:
            return NO_WORDS
        sets = self._sets[self.index.runs.columns[number].group]
        drawing = sets.drawing(cell.cache, asked["clip_key"] or "")
        if isinstance(drawing, str):
            return drawing
        drawings.append(drawing)
        bounds = None if asked["clip_start"] is None else (asked["clip_start"], asked["clip_end"])
        view = View(
            number,
            Clip(asked["path"], bounds, asked["source_fingerprint"]),
            tuple(sorted((sets.sampling_of(cell.cache) or {}).items(), key=lambda one: one[0])),
            tuple(float(time) for time in drawing.times),
        )
        same = [
            at
            for at, v in enumerate(views)
            if (v.clip, repr(v.sampling), v.times) == (view.clip, repr(view.sampling), view.times)
        ]
        if not same:
            views.append(view)
        return len(drawings) - 1, same[0] if same else len(views) - 1


def seen_to_json(seen: Seen, urls: Sequence[Sequence[str]], missing: Sequence[str | None]) -> Json:
    """Convert token sets and frames to JSON for the page.

    Args:
        seen: From `ClipPages.seen`.
        urls: URLs of the pictures of every view.
        missing: Reason why a view has no pictures; `None` if it has.
    """
    return {
        "drawings": [drawing.to_json() for drawing in seen.drawings],
        "views": [
            {
                "times": [round(time, 4) for time in view.times],
                "per": PER_SPRITE,
                "urls": list(own),
                "missing": why,
            }
            for view, own, why in zip(seen.views, urls, missing, strict=True)
        ],
        "columns": {
            str(number): {"missing": there} if isinstance(there, str) else {"at": list(there)}
            for number, there in seen.columns.items()
        },
    }


def num_sprites(view: View) -> int:
    """Number of pictures into which the frames of a view are combined."""
    return -(-len(view.times) // PER_SPRITE)


def sprites_of(decoder: FrameDecoder, view: View) -> list[bytes]:
    """Decode the frames of a view and combine them into pictures.

    Raises:
        FramesMissingError: If the frames cannot be decoded.
    """
    if not view.sampling:
        raise FramesMissingError("The token cache has no record of its frame sampling.")
    return decoder.sprites(view.clip, dict(view.sampling), view.times)


def _question(
    row: dict[str, Any],
    words: dict[str, Any],
    groups: list[list[str]],
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
        "groups": groups,
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
