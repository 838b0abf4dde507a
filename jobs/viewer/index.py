"""Database on disk with all questions and answers of the runs.

Answers are read part by part and checked, as for every report. A question has a string of outcomes
with one letter per cell for correctness and status, so that 100,000 questions with 21 cells are
100,000 short strings, which the database and the page can filter in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

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
from pipeline.progress.parts import AnswerParts
from pipeline.progress.resume import ASKED
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
_ASKED = [name for name in ASKED.names if name not in ("benchmark", "video_id", "subtitles_digest")]

_TEXT, _NUMBER = pa.string(), pa.int32()
_TABLES = {
    "staged": pa.schema(
        [
            *((name, _TEXT) for name in ("benchmark", "video_id", "question_id", "groups")),
            ("col", _NUMBER),
            ("letter", _TEXT),
            ("run", _NUMBER),
            *(ANSWER.field(name) for name in SHOWN),
        ]
    ),
    "asked": pa.schema([("clip", _NUMBER), ("grp", _NUMBER), *(ASKED.field(n) for n in _ASKED)]),
    "texts": pa.schema(
        [("clip", _NUMBER), ("question_id", _TEXT), ("text", _TEXT), ("options", _TEXT)]
    ),
}
# Clips, questions and sets of groups are numbered in order of first occurrence.
_NUMBERED = """
CREATE TABLE named_clips AS
SELECT row_number() OVER (ORDER BY min(rowid)) - 1 AS clip, benchmark, video_id
FROM staged GROUP BY benchmark, video_id;
CREATE TABLE clips AS
SELECT clip, printable(benchmark) AS benchmark, printable(video_id) AS video FROM named_clips;
CREATE TABLE groupings AS
SELECT row_number() OVER (ORDER BY min(rowid)) - 1 AS kind, groups FROM staged GROUP BY groups;
CREATE TABLE named_questions AS
SELECT row_number() OVER (ORDER BY min(s.rowid)) - 1 AS question, clip, question_id,
       arg_min(groups, s.rowid) AS groups, {outcomes} AS outcomes
FROM staged s JOIN named_clips USING (benchmark, video_id) GROUP BY clip, question_id;
CREATE TABLE answers AS
SELECT clip, question, col, run, {shown}
FROM staged JOIN named_clips USING (benchmark, video_id)
     JOIN named_questions USING (clip, question_id);
DROP TABLE staged;
"""
_JOINED = """
CREATE TABLE questions AS
SELECT n.question, n.clip, c.benchmark, c.video, printable(n.question_id) AS id, g.kind, n.outcomes,
       coalesce(t.text, '') AS text, coalesce(t.options, '') AS options
FROM named_questions n JOIN clips c USING (clip) JOIN groupings g USING (groups)
     LEFT JOIN (SELECT clip, question_id, any_value(text) AS text, any_value(options) AS options
                FROM texts GROUP BY clip, question_id) t USING (clip, question_id)
ORDER BY n.question;
DROP TABLE named_questions; DROP TABLE texts;
"""
_TWICE = """
SELECT max(run) AS run, count(*) AS n
FROM (SELECT max(run) AS run FROM answers WHERE col >= 0
      GROUP BY question, col HAVING count(*) > 1)
"""


class QuestionIndex:
    """The questions, clips and answers of some runs.

    Args:
        runs: The runs to index.
        folder: An empty directory for the database.

    Attributes:
        kinds: Groups of every kind of question, as name -> value.

    Raises:
        DamagedFileError: If a part of a run is damaged.
        ValueError: If two shards of a job contain the same question.
    """

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.runs = runs
        # No query may access the network.
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
        self._connection.create_function("printable", printable, ["VARCHAR"], "VARCHAR")
        for name, schema in _TABLES.items():
            self._connection.register("incoming", schema.empty_table())
            self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
        self._fill()
        self.num_questions, self.num_clips = (
            int(self.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"])
            for table in ("questions", "clips")
        )
        self.has_words = bool(self.rows("SELECT 1 FROM questions WHERE text <> '' LIMIT 1"))

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of a query as dictionaries; thread-safe."""
        with self._connection.cursor() as cursor:
            found = cursor.execute(query, list(values))
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _fill(self) -> None:
        folders = [folder for group in self.runs.groups for folder in group.folders]
        for number, group in enumerate(self.runs.groups):
            columns = {c.name: at for at, c in enumerate(self.runs.columns) if c.group == number}
            for folder in group.folders:
                for table in AnswerParts(folder / "answers").whole_clips():
                    self._stage(AnswerColumns(table), columns, folders.index(folder))
        letters = [
            f"coalesce(max(letter) FILTER (WHERE col = {at}), '{NOT_ASKED}')"
            for at in range(len(self.runs.columns))
        ]
        outcomes = f"concat({', '.join(letters)})" if letters else f"'{NOT_ASKED}'"
        self._connection.execute(_NUMBERED.format(outcomes=outcomes, shown=", ".join(SHOWN)))
        (twice,) = self.rows(_TWICE)
        if twice["n"]:
            raise InputError(
                f"{folders[twice['run']]} holds {twice['n']} questions that another shard of its "
                "job holds, too; name one of them"
            )
        names = self.rows("SELECT benchmark, video_id, clip FROM named_clips")
        clips = {(row["benchmark"], row["video_id"]): row["clip"] for row in names}
        for number, group in enumerate(self.runs.groups):
            self._add_asked(number, group, clips)
        self.kinds = [
            {printable(name): printable(value) for name, value in read_groups(groups).items()}
            for (groups,) in self._connection.execute(
                "SELECT groups FROM groupings ORDER BY kind"
            ).fetchall()
        ]
        self._connection.execute(_JOINED)

    def _stage(self, answers: AnswerColumns, columns: dict[str, int], run: int) -> None:
        """Add the answers of one part of a run."""
        own = np.array([columns.get(name, -1) for _, name in answers.cell_names])[answers.cells]
        codes, groups = answers.texts("groups")
        texts = [*(str(text or "{}") for text in groups), "{}"]
        self._insert(
            "staged",
            benchmark=answers.table["benchmark"],
            video_id=answers.table["video_id"],
            question_id=answers.table["question_id"],
            groups=[texts[code] for code in codes.tolist()],
            col=own.astype(np.int32),
            letter=letters_of(answers),
            run=np.full(len(own), run, np.int32),
            **{name: _column(answers.table, name) for name in SHOWN},
        )

    def _add_asked(self, number: int, group: RunGroup, clips: dict[tuple[str, str], int]) -> None:
        """Add the questions that a group of runs recorded; the first row of a clip is used."""
        seen: set[int] = set()
        for table in group.asked():
            for batch in table.to_batches(max_chunksize=2_000):
                asked: list[tuple[int, dict[str, Any]]] = []
                for row in batch.to_pylist():
                    clip = clips.get((row["benchmark"], row["video_id"]))
                    if clip is not None and clip not in seen:
                        seen.add(clip)
                        asked.append((clip, row))
                self._insert(
                    "asked",
                    clip=[clip for clip, _ in asked],
                    grp=[number] * len(asked),
                    **{name: [row[name] for _, row in asked] for name in _ASKED},
                )
                words = [(clip, one) for clip, row in asked for one in json.loads(row["questions"])]
                self._insert(
                    "texts",
                    clip=[clip for clip, _ in words],
                    question_id=[one["id"] for _, one in words],
                    text=[printable(one["text"]) for _, one in words],
                    options=["\n".join(map(printable, one["choices"])) for _, one in words],
                )

    def _insert(self, target: str, **columns: Any) -> None:
        """Add rows to a table."""
        table = pa.table(columns, schema=_TABLES[target])
        self._connection.register("incoming", table)
        self._connection.execute(f"INSERT INTO {target} SELECT * FROM incoming")


def letters_of(columns: AnswerColumns) -> list[str]:
    """Outcome letter of every answer.

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
    return [str(letter) for letter in np.where(failed, reasons, letters)]


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    """A column of the answers, with nulls if missing and cast to the expected type."""
    kind = ANSWER.field(name).type
    if name not in table.column_names:
        return pa.nulls(table.num_rows, kind)
    try:
        return table[name].cast(kind)
    except (pa.ArrowException, NotImplementedError):
        return pa.nulls(table.num_rows, kind)
