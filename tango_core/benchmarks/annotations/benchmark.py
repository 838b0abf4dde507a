"""Benchmarks that are a table of annotations beside a folder of videos."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.annotations.layout import MediaFinder, find_file, resolve_root
from tango_core.benchmarks.annotations.tables import Row
from tango_core.benchmarks.base import Benchmark
from tango_core.benchmarks.names import check_name
from tango_core.benchmarks.protocols import build_protocol
from tango_core.types import Question, VideoItem

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """One question of a release, with where it came from.

    Attributes:
        index: Row number over the whole release in the order of its files, from 0; what the
            harnesses call `index` (VLMEvalKit) and, where they read one table, `doc_id`
            (lmms-eval).
        row: The row as the release has it.
        video_id: Names the clip.
        path: The video file or folder of frames, whether it exists or not.
        clip: (start, end) in seconds, or `None` for the whole file.
        question: What is asked.
        notes: What a careful reader should know about this row.
        length_s: How long the file is in seconds, as the row states it; `None` if it does not.
    """

    index: int
    row: Row
    video_id: str
    path: str
    clip: tuple[float, float] | None
    question: Question
    notes: tuple[str, ...] = ()
    length_s: float | None = None


@dataclass(frozen=True)
class Defect:
    """A row that is no question.

    Attributes:
        where: File and row, as an editor or a person would count them.
        problem: What is wrong with it.
        blank: The row holds nothing at all and is left out; any other defect ends a job.
    """

    where: str
    problem: str
    blank: bool = False


class BlankRowError(ValueError):
    """A row in which question and options are empty."""


@dataclass(frozen=True)
class Table:
    """One annotation file.

    Attributes:
        path: The file.
        rows: Its rows.
        task: The task all its rows belong to; "" where the rows say it.
        folder: The folder its videos are in, if the release says so.
    """

    path: Path
    rows: Sequence[Row]
    task: str = ""
    folder: str = ""


class AnnotatedBenchmark(Benchmark):
    """Reads a public release from a folder; nothing is downloaded and no video is opened.

    Args:
        root: Folder of the release, in one of the layouts named in `layout`.
        split: One of `splits`.
        seed: Ignored; the data exist once.
        protocol: `"vlmevalkit"` or `"lmms_eval"`.

    Raises:
        ValueError: If a setting is unknown, `root` is not set, or a row is malformed.
        FileNotFoundError: If `root` or the annotations are not there.
    """

    title: ClassVar[str]
    layout: ClassVar[str]
    splits: ClassVar[Mapping[str, int]]
    """Splits, and how many questions each has in the complete public release."""

    def __init__(
        self,
        root: str | None = None,
        split: str = "test",
        seed: int = 0,
        protocol: str = "vlmevalkit",
    ) -> None:
        check_name("benchmark.split", split, self.splits)
        self.split = split
        self.protocol = build_protocol(self.name, protocol)
        self.root = resolve_root(root, self.title, self.layout)
        self.media = MediaFinder(self.root)
        self.tables = self._tables()
        if not any(table.rows for table in self.tables):
            raise ValueError(f"{self.tables[0].path}: holds no questions; download the file again")
        self._records: list[Record] | None = None

    @property
    def num_questions(self) -> int:
        """Questions that the split has in the complete public release."""
        return self.splits[self.split]

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
                    yield Defect(_where(table, number), str(error), blank=True)
                except ValueError as error:
                    yield Defect(_where(table, number), str(error))
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
                if defect.blank:
                    logger.warning("%s: %s; left out", defect.where, defect.problem)
            broken = [defect for defect in defects if not defect.blank]
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
            )

    def missing_reason(self, record: Record) -> str | None:
        """Say why a clip's file cannot be had, or `None` if it should be there."""
        return None

    def _find_annotations(self, patterns: Sequence[str]) -> Path:
        """Return the first annotation file there is.

        Raises:
            FileNotFoundError: If there is none, in one line with everything that was looked for.
        """
        found = find_file(self.root, patterns)
        if found is None:
            raise FileNotFoundError(
                f"{self.title} annotations not found under {self.root}; looked for "
                f"{', '.join(patterns)}; expected layout: {self.layout}"
            )
        return found


def _where(table: Table, number: int) -> str:
    """Name a row, counted from 1."""
    return f"{table.path}, row {number + 1}"


def clip_id(name: str, clip: tuple[float, float] | None) -> str:
    """Name a clip: its file's name, and the bounds if it has any."""
    return name if clip is None else f"{name}#{clip[0]!r}-{clip[1]!r}"


def option_notes(choices: Sequence[str], answer: int | None, answer_text: str = "") -> list[str]:
    """Say what is odd about the options of a question."""
    notes = []
    if answer is None:
        notes.append(f"the answer {answer_text!r} is none of the options; not scored")
    elif not choices[answer].strip():
        notes.append("the right option is empty")
    elif choices.count(choices[answer]) > 1:
        notes.append(f"the right option {choices[answer]!r} occurs twice")
    elif len(set(choices)) < len(choices):
        notes.append("two options are equal")
    if len(choices) < 2:
        notes.append("there is only one option")
    return notes
