"""All questions of the runs in a database on disk, so that pages of them come by query.

Answers are read part by part and checked, as for every report. In memory stay one number per
question and one byte per answer; texts are in the file, which goes with the viewer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.results.answer_columns import AnswerColumns
from jobs.results.scores import read_groups
from jobs.viewer.outcomes import NOT_ASKED, OUTCOMES, letters_of
from jobs.viewer.runs import RunGroup, Runs
from pipeline.answer_parts import AnswerParts
from pipeline.asked import ASKED
from pipeline.rows import ANSWER
from tango_core.printable import printable

# What a clip's page shows of an answer.
SHOWN = [
    name
    for name in ANSWER.names
    if name not in ("benchmark", "video_id", "question_id", "cell", "groups", "method", "retention")
]

_TABLES = """
CREATE TABLE clips (clip INTEGER, benchmark VARCHAR, video VARCHAR);
CREATE TABLE asked (clip INTEGER, grp INTEGER, path VARCHAR, clip_start DOUBLE, clip_end DOUBLE,
                    clip_key VARCHAR, source_fingerprint VARCHAR, questions VARCHAR);
CREATE TABLE names (question INTEGER, clip INTEGER, id VARCHAR);
CREATE TABLE texts (question INTEGER, text VARCHAR, options VARCHAR);
CREATE TABLE marks (question INTEGER, kind INTEGER, outcomes VARCHAR, rights INTEGER);
CREATE TABLE kinds (kind INTEGER, name VARCHAR, value VARCHAR);
"""
_JOINED = """
CREATE TABLE questions AS
SELECT n.question, n.clip, c.benchmark, c.video, n.id, m.kind, m.outcomes, m.rights,
       coalesce(t.text, '') AS text, coalesce(t.options, '') AS options
FROM names n JOIN clips c USING (clip) JOIN marks m USING (question)
     LEFT JOIN (SELECT question, any_value(text) AS text, any_value(options) AS options
                FROM texts GROUP BY question) t USING (question)
ORDER BY n.question;
DROP TABLE names; DROP TABLE texts; DROP TABLE marks;
"""


class QuestionIndex:
    """The questions, clips and answers of some runs.

    Args:
        runs: Which.
        folder: An empty directory for the database.

    Raises:
        DamagedFileError: If a part of a run is damaged.
        ValueError: If two shards of a job hold the same question.
    """

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs = runs
        self._local = threading.local()
        self._cursors: list[duckdb.DuckDBPyConnection] = []
        # Nothing is fetched from a network, whatever a query names.
        self._connection = duckdb.connect(
            str(folder / "index.duckdb"),
            config={
                "memory_limit": "1GB",
                "threads": "2",
                "temp_directory": str(folder),
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        self._connection.execute(_TABLES)
        columns = ", ".join(f"{name} {_sql_type(ANSWER.field(name).type)}" for name in SHOWN)
        self._connection.execute(
            f"CREATE TABLE answers (clip INTEGER, question INTEGER, col INTEGER, {columns})"
        )
        filled = _Filled(self._connection, len(runs.columns))
        for number, group in enumerate(runs.groups):
            filled.add_answers(group, self._columns_of(number))
            filled.add_asked(number, group.asked())
        filled.finish()
        self.num_questions = len(filled.questions)
        self.num_clips = len(filled.clips)
        self.has_words = bool(self.rows("SELECT 1 FROM questions WHERE text <> '' LIMIT 1"))

    def _columns_of(self, group: int) -> dict[str, int]:
        """Name of a cell -> number of its column."""
        return {c.name: at for at, c in enumerate(self.runs.columns) if c.group == group}

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query by name; safe in several threads."""
        if not hasattr(self._local, "cursor"):
            self._local.cursor = self._connection.cursor()
            self._cursors.append(self._local.cursor)
        found = self._local.cursor.execute(query, list(values))
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def close(self) -> None:
        """Let the file go."""
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()
        self._local = threading.local()
        self._connection.close()


class _Filled:
    """Fills the tables, clip by clip.

    Args:
        connection: To the database.
        num_columns: Of the list.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, num_columns: int) -> None:
        self._connection = connection
        self.clips: dict[tuple[str, str], int] = {}
        self.questions: dict[tuple[int, str], int] = {}
        self._letters = [np.empty(0, np.uint8) for _ in range(num_columns)]
        self._kinds: dict[str, int] = {}
        self._kind_of: dict[int, int] = {}

    def add_answers(self, group: RunGroup, columns: dict[str, int]) -> None:
        """Take all answers of a group of runs."""
        for folder in group.folders:
            for table in AnswerParts(folder / "answers").whole_clips():
                self._add(AnswerColumns(table), columns, folder)

    def _add(self, answers: AnswerColumns, columns: dict[str, int], folder: Path) -> None:
        clips = self._numbers(self.clips, answers.clip_names)
        new_clips = [at for at, number in enumerate(clips) if number >= self._known_clips]
        self._insert(
            "clips",
            clip=[clips[at] for at in new_clips],
            benchmark=[printable(answers.clip_names[at][0]) for at in new_clips],
            video=[printable(answers.clip_names[at][1]) for at in new_clips],
        )
        self._known_clips = len(self.clips)
        numbers, first, ids = answers.questions
        names = [(clips[answers.clips[row]], one) for row, one in zip(first, ids, strict=True)]
        questions = self._numbers(self.questions, names)
        new = [at for at, number in enumerate(questions) if number >= self._known_questions]
        self._insert(
            "names",
            question=[questions[at] for at in new],
            clip=[names[at][0] for at in new],
            id=[printable(names[at][1]) for at in new],
        )
        self._known_questions = len(self.questions)
        for number, kind in zip(questions, self._kinds_of(answers, first), strict=True):
            self._kind_of.setdefault(number, kind)
        own = np.array([columns.get(name, -1) for _, name in answers.cell_names])[answers.cells]
        rows = np.array(questions, np.int64)[numbers]
        self._mark(rows, own, letters_of(answers), folder)
        shown = {name: _column(answers.table, name) for name in SHOWN}
        self._insert(
            "answers",
            clip=pa.array(np.array(clips, np.int32)[answers.clips]),
            question=pa.array(rows.astype(np.int32)),
            col=pa.array(own.astype(np.int32)),
            **shown,
        )

    _known_clips = 0
    _known_questions = 0

    def _numbers(self, known: dict[Any, int], keys: Iterable[Any]) -> list[int]:
        """Numbers of some names, new ones at the end."""
        return [known.setdefault(key, len(known)) for key in keys]

    def _kinds_of(self, answers: AnswerColumns, first: npt.NDArray[np.int64]) -> list[int]:
        """Number of the set of groups of every question."""
        codes, values = answers.texts("groups")
        own = [self._kinds.setdefault(str(value or "{}"), len(self._kinds)) for value in values]
        none = self._kinds.setdefault("{}", len(self._kinds)) if (codes < 0).any() else 0
        return [own[code] if code >= 0 else none for code in codes[first].tolist()]

    def _mark(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64],
        letters: npt.NDArray[np.uint8],
        folder: Path,
    ) -> None:
        """Note the outcomes of answers."""
        for column in np.unique(columns[columns >= 0]).tolist():
            mine = columns == column
            held = self._letters[column]
            if len(held) < len(self.questions):
                room = max(1024, 2 * len(self.questions)) - len(held)
                held = np.append(held, np.full(room, ord(NOT_ASKED), np.uint8))
                self._letters[column] = held
            twice = int((held[rows[mine]] != ord(NOT_ASKED)).sum())
            if twice:
                raise ValueError(
                    f"{folder} holds {twice} questions that another shard of its job holds, too; "
                    "name one of them"
                )
            held[rows[mine]] = letters[mine]

    def add_asked(self, group: int, tables: Iterable[pa.Table]) -> None:
        """Take what a group of runs was asked, newest first; of a clip the first row counts."""
        seen: set[int] = set()
        for table in tables:
            asked: dict[str, list[Any]] = {name: [] for name in ("clip", "grp", *_ASKED)}
            texts: dict[str, list[Any]] = {"question": [], "text": [], "options": []}
            for batch in table.to_batches(max_chunksize=2_000):
                for row in batch.to_pylist():
                    clip = self.clips.get((row["benchmark"], row["video_id"]))
                    if clip is None or clip in seen:
                        continue
                    seen.add(clip)
                    asked["clip"].append(clip)
                    asked["grp"].append(group)
                    for name in _ASKED:
                        asked[name].append(row[name])
                    for one in json.loads(row["questions"]):
                        number = self.questions.get((clip, one["id"]))
                        if number is not None:
                            texts["question"].append(number)
                            texts["text"].append(printable(one["text"]))
                            texts["options"].append("\n".join(map(printable, one["choices"])))
            self._insert("asked", **asked)
            self._insert("texts", **texts)

    def finish(self) -> None:
        """Put the outcomes beside the questions."""
        size = len(self.questions)
        letters = np.full((size, max(1, len(self._letters))), ord(NOT_ASKED), np.uint8)
        for column, held in enumerate(self._letters):
            letters[: min(size, len(held)), column] = held[:size]
        right = np.isin(letters, np.frombuffer(OUTCOMES["right"].encode(), np.uint8)).sum(axis=1)
        width = letters.shape[1]
        flat = letters.tobytes().decode("ascii")
        self._insert(
            "marks",
            question=list(range(size)),
            kind=[self._kind_of[number] for number in range(size)],
            outcomes=[flat[at : at + width] for at in range(0, len(flat), width)],
            rights=right.tolist(),
        )
        pairs = [
            (kind, printable(name), printable(value))
            for text, kind in self._kinds.items()
            for name, value in read_groups(text).items()
        ]
        if pairs:
            kinds, names, values = zip(*pairs, strict=True)
            self._insert("kinds", kind=list(kinds), name=list(names), value=list(values))
        self._connection.execute(_JOINED)

    def _insert(self, target: str, **columns: Any) -> None:
        """Add rows to a table."""
        table = pa.table(columns)
        if not table.num_rows:
            return
        self._connection.register("incoming", table)
        names = ", ".join(columns)
        self._connection.execute(f"INSERT INTO {target} ({names}) SELECT {names} FROM incoming")
        self._connection.unregister("incoming")


_ASKED = [name for name in ASKED.names if name not in ("benchmark", "video_id", "subtitles_digest")]


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column of the answers; runs of earlier versions lack some, other programs other types."""
    kind = ANSWER.field(name).type
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    try:
        return table[name].cast(kind)
    except (pa.ArrowException, NotImplementedError):
        return pa.nulls(table.num_rows, kind)


def _sql_type(kind: pa.DataType) -> str:
    """The database's type for one of Arrow's."""
    if pa.types.is_integer(kind):
        return "BIGINT"
    if pa.types.is_floating(kind):
        return "DOUBLE"
    return "BOOLEAN" if pa.types.is_boolean(kind) else "VARCHAR"
