"""The answers of a run on disk: Parquet parts that appear whole; a later call can continue them."""

from __future__ import annotations

import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.rows import ANSWER, Row, to_table
from pipeline.seal import DamagedFileError, read_sealed, write_sealed
from pipeline.stages.declarations import is_failed
from pipeline.storage import Storage

logger = logging.getLogger(__name__)
T = TypeVar("T")

ClipName = tuple[str, str]
"""Benchmark and video id."""

AnswerName = tuple[str, str, str, str]
"""Benchmark, video id, cell and question id."""

ANSWER_KEY = ("benchmark", "video_id", "cell", "question_id")
"""The columns that name an answer."""

_FLUSH_ROWS = 5_000
_FLUSH_SECONDS = 10.0
# Release 0.1 wrote parts without the random half of the name, and without a seal.
_PART = re.compile(r"part-(\d+)(-[0-9a-f]{12})?\.parquet")


class AnswerWriter:
    """Writes `answers/part-NNNNN-<random>.parquet`; a killed driver loses what was not flushed yet.

    A clip's answers are always in one part, so that a clip is either finished or not. Two writers
    never use one name, and a writer deletes no part but those that it has read.

    Args:
        folder: The run's `answers` directory; existing parts are kept and counted on.
        clock: Says when to flush.
        may_write: Called before every write; raises if this driver may not write any more.
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
        self._run = _run_of_folder(self.storage)
        numbers = (found for name in self.storage.names() if (found := _PART.match(name)))
        self._next = 1 + max((int(found[1]) for found in numbers), default=-1)
        self._pending: list[Row] = []
        self._kept: frozenset[ClipName] | None = None
        self._read: dict[str, pa.Table] = {}
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
            self._may_write()
            self._drop_the_others()
        if self._pending or not self.storage.names(".parquet"):
            self._write(to_table(self._pending, ANSWER))
            self._pending = []
        self._last_flush = self._clock.monotonic()

    def _write(self, table: pa.Table) -> None:
        """Write one part atomically."""
        name = f"part-{self._next:05d}-{uuid.uuid4().hex[:12]}.parquet"
        write_sealed(table, self.storage, name, self._run)
        self._next += 1

    def finished(self, cells: Sequence[str]) -> dict[ClipName, frozenset[str]]:
        """What an earlier attempt finished. A damaged part is renamed, so its clips are not.

        Args:
            cells: Names of the job's cells; a clip is finished when every one of them has its
                answers and none of these failed.

        Returns:
            For each finished clip, the ids of its questions.
        """
        self._read, self._run = _checked_parts(self.storage, set_aside=True)
        found = {}
        for clip, answers in _by_clip(self._read).items():
            failed = any(map(is_failed, answers.values()))
            if not failed and {cell for cell, _ in answers} == set(cells):
                found[clip] = frozenset(question for _, question in answers)
        return found

    def keep(self, clips: Collection[ClipName]) -> None:
        """Drop what `finished` read of all other clips, once the first new answers arrive."""
        self._kept = frozenset(clips)

    def missing(self, expected: Iterable[tuple[AnswerName, T]]) -> dict[AnswerName, T]:
        """Of the expected answers, those that are in no good part; call it after the last flush."""
        there: set[AnswerName] = set()
        for table in _checked_parts(self.storage, set_aside=True)[0].values():
            there.update(zip(*(table[key].to_pylist() for key in ANSWER_KEY), strict=True))
        return {name: about for name, about in expected if name not in there}

    def _drop_the_others(self) -> None:
        """Write the kept clips as one part, then delete the parts they were read from.

        A driver that dies in between leaves rows twice; readers take the later one.
        """
        if self._kept is None:
            return
        clips = _by_clip(self._read)
        rows = [row for clip in clips if clip in self._kept for row in clips[clip].values()]
        if self._read:
            self._write(to_table(rows, ANSWER))
        for name in self._read:
            with suppress(FileNotFoundError):
                self.storage.delete(name)
        self._kept, self._read = None, {}


def _by_clip(parts: dict[str, pa.Table]) -> dict[ClipName, dict[tuple[str, str], Row]]:
    """All rows of the parts; of a row that is there twice the later one."""
    by_clip: dict[ClipName, dict[tuple[str, str], Row]] = {}
    for table in parts.values():
        for row in table.to_pylist():
            clip = by_clip.setdefault((row["benchmark"], row["video_id"]), {})
            clip[row["cell"], row["question_id"]] = row
    return by_clip


def read_parts(folder: Path | Storage) -> dict[str, pa.Table]:
    """The parts of a run's `answers` directory by name, in order, each checked.

    Raises:
        DamagedFileError: If a part is damaged, or belongs to another run.
    """
    return _checked_parts(Storage.at(folder), set_aside=False)[0]


def _checked_parts(storage: Storage, *, set_aside: bool) -> tuple[dict[str, pa.Table], str]:
    """The good parts, and the run that their seals name.

    Args:
        storage: The directory.
        set_aside: Whether a damaged part is renamed to `<name>.damaged` with a warning, as the
            driver of the run does; otherwise it is an error.
    """
    parts: dict[str, pa.Table] = {}
    runs: dict[str, str] = {}
    for name in storage.names(".parquet"):
        found = _PART.fullmatch(name)
        try:
            sealed = read_sealed(storage, name, must=bool(found and found[2]))
        except DamagedFileError as error:
            _report_damage(storage, name, error, set_aside)
            continue
        parts[name] = sealed.table
        if sealed.run is not None:
            runs[name] = sealed.run
    own = _run_of_folder(storage)
    if runs and own not in runs.values():  # the directory was renamed
        own = Counter(runs.values()).most_common(1)[0][0]
    for name in [name for name, run in runs.items() if run != own]:
        stranger = DamagedFileError(f"{storage.path(name)} belongs to the run {runs[name]}")
        _report_damage(storage, name, stranger, set_aside)
        del parts[name]
    return parts, own


def _report_damage(storage: Storage, name: str, error: DamagedFileError, set_aside: bool) -> None:
    """Rename a damaged part and say so, or refuse to go on."""
    if not set_aside:
        raise DamagedFileError(
            f"{error}; --resume {_run_of_folder(storage)} sets it aside and asks its questions "
            "again"
        ) from error
    storage.move(name, f"{name}.damaged")
    logger.warning("%s; renamed to %s.damaged, its questions are asked again", error, name)


def _run_of_folder(storage: Storage) -> str:
    """Name of the run directory around an `answers` directory."""
    return storage.root.rstrip("/").split("/")[-2]


def read_answers(folder: Path | Storage) -> pa.Table:
    """All parts of a run's `answers` directory, in order; see `read_parts`."""
    parts = read_parts(folder).values()
    return pa.concat_tables([ANSWER.empty_table(), *parts], promote_options="default")
