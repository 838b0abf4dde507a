"""The answers of a run on disk: Parquet parts that appear whole and can be taken up again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.rows import ANSWER, Row, to_table
from pipeline.storage import Storage

_FLUSH_ROWS = 5_000
_FLUSH_SECONDS = 10.0
_FAILED = ("decode_failed", "encode_failed", "answer_failed")


class AnswerWriter:
    """Writes `answers/part-NNNNN.parquet`; a lost driver loses only what was not flushed yet.

    A clip's answers are always in one part, so that a clip is either finished or not.

    Args:
        folder: The run's `answers` directory; existing parts are kept and counted on.
    """

    def __init__(self, folder: Path) -> None:
        self.storage = Storage.at(str(folder))
        self._next = 1 + max((int(n[5:-8]) for n in self.storage.names(".parquet")), default=-1)
        self._pending: list[Row] = []
        self._last_flush = time.monotonic()

    def add(self, answers: Sequence[Row]) -> None:
        """Take one clip's answers; every few seconds they are written."""
        self._pending += answers
        if (
            len(self._pending) >= _FLUSH_ROWS
            or time.monotonic() - self._last_flush > _FLUSH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one more part."""
        if self._pending:
            self._write(to_table(self._pending, ANSWER))
            self._pending = []
        self._last_flush = time.monotonic()

    def _write(self, table: pa.Table) -> None:
        """Write one part atomically."""
        _write(self.storage, f"part-{self._next:05d}.parquet", table)
        self._next += 1

    def resume(self, cells: Sequence[str]) -> frozenset[tuple[str, str]]:
        """Keep what an earlier attempt finished and drop what failed, to be tried again.

        Args:
            cells: Names of the job's cells; a clip is finished when every one of them has its
                answers.

        Returns:
            (benchmark, video id) of the finished clips.
        """
        parts = self.storage.names(".parquet")
        rows = [
            row
            for name in parts
            for row in pq.read_table(pa.BufferReader(self.storage.read(name))).to_pylist()
        ]
        by_clip: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
        for row in rows:
            # A driver that died between the two steps below leaves a row twice; the later one
            # counts.
            by_clip.setdefault((row["benchmark"], row["video_id"]), {})[
                row["cell"], row["question_id"]
            ] = row
        finished = {
            clip: answers
            for clip, answers in by_clip.items()
            if {cell for cell, _ in answers} == set(cells)
            and not any(row["status"] in _FAILED for row in answers.values())
        }
        if parts:
            kept = [row for answers in finished.values() for row in answers.values()]
            self._write(to_table(kept, ANSWER))
            for name in parts:
                self.storage.delete(name)
        return frozenset(finished)


def read_answers(folder: Path) -> pa.Table:
    """All parts of a run's `answers` directory, in order."""
    storage = Storage.at(str(folder))
    parts = [
        pq.read_table(pa.BufferReader(storage.read(name))) for name in storage.names(".parquet")
    ]
    return pa.concat_tables([ANSWER.empty_table(), *parts])


def write_table(table: pa.Table, path: Path) -> None:
    """Write one Parquet file atomically."""
    _write(Storage.at(str(path.parent)), path.name, table)


def _write(storage: Storage, name: str, table: pa.Table) -> None:
    """Write a table whole."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    storage.write(name, memoryview(sink.getvalue()))
