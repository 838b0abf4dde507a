"""The answers of a run on disk: Parquet parts that appear whole and can be taken up again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.rows import ANSWER, Row, to_table
from pipeline.stages.declarations import FAILED
from pipeline.storage import Storage

ClipName = tuple[str, str]
"""Benchmark and video id."""

_FLUSH_ROWS = 5_000
_FLUSH_SECONDS = 10.0


class AnswerWriter:
    """Writes `answers/part-NNNNN.parquet`; a lost driver loses only what was not flushed yet.

    A clip's answers are always in one part, so that a clip is either finished or not.

    Args:
        folder: The run's `answers` directory; existing parts are kept and counted on.
        clock: Says when to flush.
    """

    def __init__(self, folder: Path | Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        self.storage = Storage.at(folder)
        self._clock = clock
        self._next = 1 + max((int(n[5:-8]) for n in self.storage.names(".parquet")), default=-1)
        self._pending: list[Row] = []
        self._kept: frozenset[ClipName] | None = None
        self._last_flush = self._clock.monotonic()

    def add(self, answers: Sequence[Row]) -> None:
        """Take one clip's answers; every few seconds they are written."""
        self._pending += answers
        if (
            len(self._pending) >= _FLUSH_ROWS
            or self._clock.monotonic() - self._last_flush > _FLUSH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one more part; a run has at least one, if only an empty one."""
        if self._pending:
            self._drop_the_others()
        if self._pending or not self.storage.names(".parquet"):
            self._write(to_table(self._pending, ANSWER))
            self._pending = []
        self._last_flush = self._clock.monotonic()

    def _write(self, table: pa.Table) -> None:
        """Write one part atomically."""
        write_table(table, self.storage, f"part-{self._next:05d}.parquet")
        self._next += 1

    def finished(self, cells: Sequence[str]) -> dict[ClipName, frozenset[str]]:
        """What an earlier attempt finished; nothing is changed on disk.

        Args:
            cells: Names of the job's cells; a clip is finished when every one of them has its
                answers and none of these failed.

        Returns:
            For each finished clip, the ids of its questions.
        """
        found = {}
        for clip, answers in self._by_clip().items():
            failed = any(row["status"] in FAILED for row in answers.values())
            if not failed and {cell for cell, _ in answers} == set(cells):
                found[clip] = frozenset(question for _, question in answers)
        return found

    def keep(self, clips: Collection[ClipName]) -> None:
        """Drop what is there of all other clips, once the first new answers arrive."""
        self._kept = frozenset(clips)

    def _by_clip(self) -> dict[ClipName, dict[tuple[str, str], Row]]:
        """All rows on disk; of a row that is there twice the later one."""
        by_clip: dict[ClipName, dict[tuple[str, str], Row]] = {}
        for row in read_answers(self.storage).to_pylist():
            clip = by_clip.setdefault((row["benchmark"], row["video_id"]), {})
            clip[row["cell"], row["question_id"]] = row
        return by_clip

    def _drop_the_others(self) -> None:
        """Write the kept clips as one part, then delete the old ones.

        A driver that dies in between leaves rows twice, which `_by_clip` resolves.
        """
        if self._kept is None:
            return
        parts = self.storage.names(".parquet")
        clips = self._by_clip()
        rows = [row for clip in clips if clip in self._kept for row in clips[clip].values()]
        self._kept = None
        if parts:
            self._write(to_table(rows, ANSWER))
        for name in parts:
            self.storage.delete(name)


def read_answers(folder: Path | Storage) -> pa.Table:
    """All parts of a run's `answers` directory, in order.

    Raises:
        ValueError: If one of them is damaged.
    """
    storage = Storage.at(folder)
    names = storage.names(".parquet")
    parts = [_read_part(storage, name) for name in names]
    return pa.concat_tables([ANSWER.empty_table(), *parts], promote_options="default")


def _read_part(storage: Storage, name: str) -> pa.Table:
    """One file of answers."""
    data = storage.read(name)
    try:
        return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:  # OSError: what zstd says of damaged bytes
        raise ValueError(
            f"{storage.path(name)} is damaged ({' '.join(str(error).split())}); "
            "delete it, the next --resume answers its questions again"
        ) from error


def write_table(table: pa.Table, folder: Path | Storage, name: str) -> None:
    """Write one Parquet file atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    Storage.at(folder).write(name, memoryview(sink.getvalue()))
