"""Answers of a run as Parquet parts, written atomically."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.progress import parts
from pipeline.progress.resume import AnsweredClips
from pipeline.rows import ANSWER, AnswerRow, to_table
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.seal import write_sealed
from tango_core.types import Question, VideoItem

_FLUSH_ROWS = 5_000
_FLUSH_SECONDS = 10.0
_ITEMS_PER_LOOKUP = 10_000


class AnswerWriter:
    """Writes `answers/part-NNNNN-<random>.parquet`; a killed driver loses unflushed answers.

    All answers of a clip are in one part, so that a clip is either finished or not. File names are
    unique to a writer, and a writer deletes only parts that it has read.

    Args:
        folder: The run's `answers` directory; existing parts are kept, and numbering continues.
        clock: Clock for the flush interval.
        may_write: Called before every write; raises if this driver lost the run's lease.
    """

    def __init__(
        self,
        folder: Path | Storage,
        clock: Clock = SYSTEM_CLOCK,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.storage = Storage.at(folder)
        self._clock = clock
        self._may_write = may_write
        self._run = parts.run_of_folder(self.storage)
        numbers = (found for name in self.storage.names() if (found := parts.PART.match(name)))
        self._next = 1 + max((int(found[1]) for found in numbers), default=-1)
        self._pending: list[AnswerRow] = []
        self._kept: parts.Digests | None = None
        self._read: parts.AnswerParts | None = None
        self._last_flush = self._clock.monotonic()

    def add(self, answers: Sequence[AnswerRow]) -> None:
        """Add one clip's answers; pending answers are written every few seconds."""
        self._pending += answers
        if (
            len(self._pending) >= _FLUSH_ROWS
            or self._clock.monotonic() - self._last_flush > _FLUSH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write pending answers as a new part; a run has at least one part, possibly empty."""
        if self._pending or not self.storage.names(".parquet"):
            new = self._pending
            self._write(to_table(new, ANSWER))
            self._pending = []
            if new:
                self.drop_the_others()
        self._last_flush = self._clock.monotonic()

    def _write(self, table: pa.Table) -> None:
        """Write one part atomically, if this driver still holds the lease."""
        self._may_write()
        name = f"part-{self._next:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(table, self.storage, name, self._run)
        self._next += 1

    def finished(self, cells: Sequence[str], *, keep_damaged: bool = True) -> AnsweredClips:
        """Clips finished by earlier attempts; damaged parts are renamed and not counted.

        Args:
            cells: Names of the job's cells; a clip is finished if it has answers to the same
                questions in every cell and no answer failed.
            keep_damaged: Whether answers about damaged clips are valid (`decode.damaged`).
        """
        self._read = parts.AnswerParts(self.storage, set_aside=True)
        self._run = self._read.overview.run
        clips = self._read.whole_clips()
        return AnsweredClips.of(clips, cells, keep_damaged=keep_damaged).without_failed()

    def keep(self, clips: AnsweredClips) -> None:
        """Keep only these clips: the others are dropped when the first new answers are written.

        Call `drop_the_others` to drop them immediately, because they are no longer valid.
        """
        self._kept = clips.digests

    def drop_the_others(self) -> None:
        """Rewrite the parts that contain clips which are not kept.

        Clips in several parts are merged. If the driver dies meanwhile, rows may exist twice;
        readers use the later one.
        """
        if self._kept is None or self._read is None:
            return
        kept, reader = self._kept, self._read
        overview = reader.overview
        for table in reader.whole_clips(only_split=True):
            self._write_kept(table, kept)
        for name, clips in zip(overview.names, overview.clips, strict=True):
            split = parts.is_in(clips, overview.split)
            stays = parts.is_in(clips, kept) & ~split
            if (len(clips) and stays.all()) or not self.storage.exists(name):
                continue
            if stays.any() and (table := reader.read(name)) is not None:
                self._write_kept(table, np.sort(clips[stays]))
            self._may_write()
            with suppress(FileNotFoundError):
                self.storage.delete(name)
        self._kept = self._read = None

    def missing(
        self, expected: Iterable[tuple[str, VideoItem]], cells: Sequence[str]
    ) -> list[tuple[str, VideoItem, str, Question]]:
        """Expected answers that are in no undamaged part; call this after the last flush.

        Args:
            expected: Benchmark and clip, whose questions are asked under every cell.
            cells: Names of the cells.

        Returns:
            Benchmark, clip, cell and question of every answer that is not there.
        """
        reader = parts.AnswerParts(self.storage, set_aside=True)
        answered = AnsweredClips.of(reader.whole_clips(), cells)
        lacking = []
        rest = iter(expected)
        while some := list(islice(rest, _ITEMS_PER_LOOKUP)):
            digests = parts.digests_of([(benchmark, item.video_id) for benchmark, item in some])
            found = answered.has(digests, ([q.id for q in item.questions] for _, item in some))
            lacking += [one for one, is_there in zip(some, found, strict=True) if not is_there]
        there = _names_of(reader, {(benchmark, item.video_id) for benchmark, item in lacking})
        return [
            (benchmark, item, cell, question)
            for benchmark, item in lacking
            for question in item.questions
            for cell in cells
            if (benchmark, item.video_id, cell, question.id) not in there
        ]

    def _write_kept(self, table: pa.Table, kept: parts.Digests) -> None:
        """Write the answers of clips with the given sorted digests as a new part."""
        codes, names = parts.clips_of(table)
        stays = parts.is_in(parts.digests_of(names), kept)[codes]
        if stays.any():
            table = parts.joined([ANSWER.empty_table(), table.filter(pa.array(stays))])
            self._write(table.select(ANSWER.names).cast(ANSWER))


def _names_of(reader: parts.AnswerParts, clips: set[tuple[str, str]]) -> set[parts.AnswerName]:
    """Names of the existing answers about some clips."""
    found: set[parts.AnswerName] = set()
    for table in reader.whole_clips() if clips else ():
        codes, names = parts.clips_of(table)
        asked = pa.array([name in clips for name in names], pa.bool_()).take(pa.array(codes))
        some = table.filter(asked)
        found.update(zip(*(some[key].to_pylist() for key in parts.ANSWER_KEY), strict=True))
    return found


def read_answers(folder: Path | Storage) -> pa.Table:
    """All answers of a run at once, no answer twice, for runs that fit into memory.

    Raises:
        DamagedFileError: If a part is damaged, or belongs to another run.
    """
    return parts.joined([ANSWER.empty_table(), *parts.AnswerParts(folder).whole_clips()])
