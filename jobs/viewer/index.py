"""Index of all questions of the runs in memory, and their answers on request.

Answers are read part by part and checked, as for every report, but only one letter of each is kept:
a question has a string of outcomes with one letter per cell for correctness and status, which the
page filters. The answers about a clip are read again from the parts of the run that hold them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jobs.results.answer_columns import (
    DAMAGED_BIT,
    FAILED_BIT,
    OK,
    RIGHT,
    SCORED,
    UNPARSED,
    AnswerColumns,
    read_groups,
)
from jobs.viewer.runs import RunGroup, Runs
from pipeline.progress.parts import (
    AnswerParts,
    ClipName,
    digests_of,
    is_in,
    joined,
    last_of_each,
)
from pipeline.progress.resume import read_asked
from pipeline.rows import ANSWER
from tango_core.errors import InputError
from tango_core.printable import printable

NOT_ASKED = "."

OUTCOMES = {
    "right": "Rr",
    "wrong": "WwUuDdeax",
    "unscored": "Nn",
}
"""Letters counted as correct or wrong, as in tables: failed and unparsed answers are wrong."""

STATUSES = {
    "ok": "RWN",
    "unparsed": "U",
    "decode_failed": "d",
    "decode_damaged": "Drwun",
    "encode_failed": "e",
    "answer_failed": "a",
    "other": "x",
}

# Columns of an answer that a clip's page shows.
SHOWN = [
    name
    for name in ANSWER.names
    if name not in ("benchmark", "video_id", "question_id", "cell", "groups", "method", "retention")
]
_CLIP = ["benchmark", "video_id"]
_PARTS_IN_MEMORY = 4


@dataclass(frozen=True)
class ListedQuestion:
    """One question of the list.

    Attributes:
        clip: Number of its clip.
        id: Its id.
        kind: Index in `QuestionIndex.kinds` of its groups.
        outcomes: One letter per column.
    """

    clip: int
    id: str
    kind: int
    outcomes: str


class QuestionIndex:
    """The questions, clips and answers of some runs.

    Args:
        runs: The runs to index.

    Attributes:
        clips: Benchmark and video id of every clip.
        questions: All questions in the order of the runs.
        kinds: Groups of every kind of question, as name -> value.

    Raises:
        DamagedFileError: If a part of a run is damaged.
        ValueError: If two shards of a job contain the same question.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.clips: list[ClipName] = []
        self.questions: list[ListedQuestion] = []
        self.kinds: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._parts = [
            [AnswerParts(folder / "answers") for folder in group.folders] for group in runs.groups
        ]
        self._read = lru_cache(_PARTS_IN_MEMORY)(_needed_columns)
        self._fill()
        self.numbers = {name: number for number, name in enumerate(self.clips)}
        self._asked = [self._asked_in(group) for group in runs.groups]
        self._of_clip: list[list[int]] = [[] for _ in self.clips]
        for number, question in enumerate(self.questions):
            self._of_clip[question.clip].append(number)

    def questions_of(self, clip: int) -> list[int]:
        """Numbers of the questions about a clip."""
        return self._of_clip[clip]

    def asked(self, clip: int) -> dict[int, dict[str, Any]]:
        """Recorded file, key and questions of a clip, by group of runs."""
        return {at: asked[clip] for at, asked in enumerate(self._asked) if clip in asked}

    @property
    def has_words(self) -> bool:
        """Whether any run recorded its questions."""
        return any(self._asked)

    def answers(self, clips: Iterable[int]) -> dict[tuple[int, str, int], dict[str, Any]]:
        """(Clip, question id, column) -> answer, for some clips.

        Raises:
            DamagedFileError: If a part of a run was damaged or removed since it was opened.
        """
        names = [self.clips[number] for number in clips]
        videos = pa.array([video for _, video in names])
        digests = np.sort(digests_of(names))
        found = {}
        with self._lock:
            for number, group in enumerate(self._parts):
                columns = self.runs.columns_of(number)
                for parts in group:
                    tables = [
                        table.filter(pc.is_in(table["video_id"], videos))
                        for name, own in zip(
                            parts.overview.names, parts.overview.clips, strict=True
                        )
                        if is_in(own, digests).any()
                        for table in [self._read(parts, name)]
                    ]
                    for row in last_of_each(joined(tables)).to_pylist() if tables else ():
                        clip = self.numbers.get((row["benchmark"], row["video_id"]))
                        column = columns.get(row["cell"])
                        if clip is not None and column is not None:
                            found[clip, row["question_id"], column] = row
        return found

    def _fill(self) -> None:
        """Read all answers once, and number questions, clips and kinds by first occurrence."""
        parts: list[pd.DataFrame] = []
        for group, own_parts in enumerate(self._parts):
            columns = self.runs.columns_of(group)
            for number, one in enumerate(own_parts):
                for table in one.whole_clips():
                    answers = AnswerColumns(table)
                    rows = _with_columns(answers.table, [*_CLIP, "question_id", "groups"])
                    own = np.array([columns.get(name, -1) for _, name in answers.cell_names])
                    cells = {"column": own[answers.cells], "letter": letters_of(answers)}
                    parts.append(rows.to_pandas().assign(**cells, shard=number))
        answers_of = pd.concat(parts, ignore_index=True).fillna({"groups": "{}"})
        names = [*_CLIP, "question_id"]
        answers_of["question"] = answers_of.groupby(names, sort=False).ngroup()
        first = answers_of.drop_duplicates("question")
        self.clips = list(first[_CLIP].drop_duplicates().itertuples(index=False, name=None))
        self.kinds = [
            {printable(name): printable(value) for name, value in read_groups(kind).items()}
            for kind in first["groups"].unique()
        ]
        known = answers_of[answers_of["column"] >= 0]
        twice = known[known.duplicated(["question", "column"])]
        if len(twice):
            (shard, *_), (column, *_) = twice["shard"], twice["column"]
            place = self.runs.groups[self.runs.columns[column].group].places[shard]
            raise InputError(
                f"{place} holds {twice['question'].nunique()} questions that another shard of its "
                "job holds, too; name one of them"
            )
        outcomes = np.full((len(first), max(1, len(self.runs.columns))), NOT_ASKED)
        outcomes[known["question"], known["column"]] = known["letter"]
        self.questions = list(
            map(
                ListedQuestion,
                first.groupby(_CLIP, sort=False).ngroup().tolist(),
                first["question_id"].tolist(),
                first.groupby("groups", sort=False).ngroup().tolist(),
                outcomes.view(f"U{outcomes.shape[1]}")[:, 0].tolist(),
            )
        )

    def _asked_in(self, group: RunGroup) -> dict[int, dict[str, Any]]:
        """What a group of runs recorded about every clip; its newest row counts."""
        found: dict[int, dict[str, Any]] = {}
        for folder in group.folders:
            for table in read_asked(folder):
                for row in table.to_pylist():
                    clip = self.numbers.get((row["benchmark"], row["video_id"]))
                    if clip is not None:
                        found.setdefault(clip, row)
        return found


def _needed_columns(parts: AnswerParts, name: str) -> pa.Table:
    """Names and shown columns of a part."""
    table = parts.read(name)
    assert table is not None  # damage is an error
    return _with_columns(table, [*_CLIP, "question_id", "cell", *SHOWN])


def _with_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Columns of the answers, with nulls if missing and cast to the expected types."""

    def column(name: str) -> pa.ChunkedArray | pa.Array:
        kind = ANSWER.field(name).type
        if name in table.column_names:
            with suppress(pa.ArrowException, NotImplementedError):
                return table[name].cast(kind)
        return pa.nulls(table.num_rows, kind)

    return pa.table({name: column(name) for name in names})


def letters_of(columns: AnswerColumns) -> npt.NDArray[np.str_]:
    """(n,) outcome letter of every answer.

    Lower-case r, w, u, n mark answers about damaged clips that were kept.
    """
    known, right, ok, unparsed, failed, damaged = (
        (columns.bits & bit) > 0 for bit in (SCORED, RIGHT, OK, UNPARSED, FAILED_BIT, DAMAGED_BIT)
    )
    codes, names = columns.texts("status")
    reasons = np.array([*(STATUSES.get(name, "x")[0] for name in names), "x"])[codes]
    letters = np.select([known & unparsed, right, known & ok], ["U", "R", "W"], "N")
    letters = np.where(damaged, np.char.lower(letters), letters)
    letters = np.where(ok | unparsed, letters, "x")
    return np.asarray(np.where(failed, reasons, letters), np.str_)
