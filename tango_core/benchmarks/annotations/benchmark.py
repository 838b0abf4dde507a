"""Benchmarks that are a table of annotations beside a folder of videos."""

from __future__ import annotations

import logging
import shlex
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.annotations.harness_files import LmmsEvalSamples, VLMEvalKitTable
from tango_core.benchmarks.annotations.layout import MediaFinder, find_file, resolve_root
from tango_core.benchmarks.annotations.records import BlankRowError, Record, Table
from tango_core.benchmarks.annotations.tables import Row
from tango_core.benchmarks.base import Benchmark, Defect
from tango_core.local_files import read_text
from tango_core.outside_code import is_outside
from tango_core.types import Subtitles, VideoItem

logger = logging.getLogger(__name__)


class AnnotatedBenchmark(Benchmark):
    """Reads a public release from a folder; nothing is downloaded and no video is opened.

    Args:
        root: Folder of the release, in one of the layouts named in `layout`.
        split: One of `splits`.
        seed: Ignored; the data exist once.
        protocol: One of `protocols`.

    Attributes:
        layout: What the folder of a release holds, for messages.
        vlmevalkit_table: The data set in VLMEvalKit; `None` if it has none.
        lmms_eval_samples: The tasks in lmms-eval; `None` if it has none.

    Raises:
        ValueError: If a setting is unknown, `root` is not set, or a row is malformed.
        FileNotFoundError: If `root` or the annotations are not there.
    """

    layout: ClassVar[str]
    vlmevalkit_table: ClassVar[VLMEvalKitTable | None] = None
    lmms_eval_samples: ClassVar[LmmsEvalSamples | None] = None
    root: Path

    def __init__(
        self,
        root: str | None = None,
        split: str = "test",
        seed: int = 0,
        protocol: str = "vlmevalkit",
    ) -> None:
        super().__init__(root, split, seed, protocol)
        self.root = resolve_root(root, self.title or self.name, self.layout)
        self.media = MediaFinder(self.root)
        self.tables = self._tables()
        if not any(table.rows for table in self.tables):
            raise ValueError(f"{self.tables[0].path}: holds no questions; download the file again")
        self._records: list[Record] | None = None

    @abstractmethod
    def _tables(self) -> list[Table]:
        """Find and read the annotation files."""

    @abstractmethod
    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        """Understand one row.

        Args:
            index: Row number over all tables, from 0.
            number: Row number in this table, from 0.
            row: The row.
            table: The table it is from.

        Raises:
            ValueError: If the row is malformed.
        """

    def entries(self) -> Iterator[Record | Defect]:
        """Yield what every row is, in the order of the release; malformed rows do not end it."""
        index = 0
        seen: set[str] = set()
        for table in self.tables:
            for number, row in enumerate(table.rows):
                try:
                    record = self._record(index, number, row, table)
                    if record.question.id in seen:
                        raise ValueError(f"question id {record.question.id!r} occurs twice")
                    seen.add(record.question.id)
                    yield record
                except BlankRowError as error:
                    yield Defect(_row_name(table, number), f"{error}; skipped", fatal=False)
                except ValueError as error:
                    yield Defect(_row_name(table, number), str(error))
                index += 1

    def records(self) -> list[Record]:
        """Return all questions in the order of the release.

        Raises:
            ValueError: If any row is malformed: the first one, and how many there are.
        """
        if self._records is None:
            entries = list(self.entries())
            defects = [entry for entry in entries if isinstance(entry, Defect)]
            for defect in defects:
                if not defect.fatal:
                    logger.warning("%s: %s", defect.where, defect.problem)
            broken = [defect for defect in defects if defect.fatal]
            if broken:
                count = "1 row is" if len(broken) == 1 else f"{len(broken)} rows are"
                split = "" if self.split == "test" else f" --split {self.split}"
                raise ValueError(
                    f"{broken[0].where}: {broken[0].problem}; {count} malformed, "
                    f"check all rows with: tango data check {self.name} {self.root}{split}"
                )
            self._records = [entry for entry in entries if isinstance(entry, Record)]
        return self._records

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the clips in the order in which the release first asks about them."""
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be 0 or more, got {limit}")
        clips: dict[tuple[str, tuple[float, float] | None], list[Record]] = {}
        for record in self.records():
            clips.setdefault((record.path, record.clip), []).append(record)
        for (path, clip), records in islice(clips.items(), limit):
            yield VideoItem(
                video_id=records[0].video_id,
                path=path,
                clip=clip,
                questions=tuple(record.question for record in records),
                subtitles=self._subtitles_of(records[0]) if self.subtitles else None,
            )

    def show_subtitles(self) -> None:
        """As in `Benchmark`.

        Raises:
            FileNotFoundError: If no video has subtitles here: they were not fetched.
        """
        super().show_subtitles()
        if all(self.subtitle_path(record) is None for record in self.records()):
            raise FileNotFoundError(
                f"benchmark.subtitles true: no subtitles of {self.title or self.name} under "
                f"{self.root}; fetch them with: tango data get {self.name} --root {self.root} "
                "--only subtitles"
            )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the subtitles of a question's video are; `None` for a video without."""
        return None

    def _subtitles_of(self, record: Record) -> Subtitles:
        """Read the subtitles of a question's video."""
        path = self.subtitle_path(record)
        # A byte that is no UTF-8 in one of many files of subtitles is no reason to end a job.
        return Subtitles(None if path is None else read_text(Path(path), errors="replace"))

    def missing_reason(self, record: Record) -> str | None:
        """Say why a clip's file cannot be had, or `None` if it should be there."""
        return None

    def _find_annotations(self, patterns: Sequence[str]) -> Path:
        """Return the first annotation file there is.

        Raises:
            FileNotFoundError: If there is none, in one line that ends with the command that fetches
                them, if there is one.
        """
        found = find_file(self.root, patterns)
        if found is None:
            get = f"tango data get {self.name} --root {shlex.quote(str(self.root))}"
            can_get = self.releases and not is_outside(type(self))
            raise FileNotFoundError(
                f"{self.title or self.name} annotations not found under {self.root}; expected "
                f"there: {self.layout}{f'; to fetch them: {get}' if can_get else ''}"
            )
        return found


def _row_name(table: Table, number: int) -> str:
    """Name a row, counted from 1."""
    return f"{table.path}, row {number + 1}"
