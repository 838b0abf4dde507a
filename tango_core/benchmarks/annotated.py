"""Benchmarks that are annotation tables beside a folder of videos.

A benchmark states the names of its files and columns, its prompts and its metric as class
attributes. Where its rows differ from a plain table of multiple-choice questions, it overrides the
methods that read them, which begin with an underscore.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks.base import Benchmark, Defect, check_limit
from tango_core.benchmarks.releases import MediaFinder, find_file
from tango_core.benchmarks.scoring.multiple_choice import LETTERED, letter_of
from tango_core.benchmarks.tables import (
    Row,
    form_notes,
    index_of_letter,
    is_missing,
    length_of,
    list_of,
    option_notes,
    options_in,
    read_rows,
    text_of,
)
from tango_core.code_identity import is_outside
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import read_text
from tango_core.types import Question, Subtitles, VideoItem

logger = logging.getLogger(__name__)

Clip = tuple[float, float] | None
Sample = Mapping[str, Any]

VIDEO_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm")
"""Suffixes of video files."""


@dataclass(frozen=True)
class Record:
    """One question of a release, with its source row.

    Attributes:
        video_id: Names the clip.
        path: The video file or folder of frames, whether it exists or not.
        question: The question.
        clip: (start, end) in seconds, or `None` for the whole file.
        notes: Remarks about irregularities of this row; those about its options are added.
        length_s: Length of the file in seconds according to the row; `None` if not stated.
        row: The unchanged row of the release; set by `AnnotatedBenchmark`, like the next two.
        index: Row number over the whole release in the order of its files, from 0; what the
            harnesses call `index` (VLMEvalKit) and, where they read one table, `doc_id`
            (lmms-eval).
        number: Row number in its own table, from 0; for releases of several tables.
    """

    video_id: str
    path: str
    question: Question
    clip: Clip = None
    notes: tuple[str, ...] = ()
    length_s: float | None = None
    row: Row = field(default_factory=dict)
    index: int = 0
    number: int = 0


class BlankRowError(InputError):
    """A row in which question and options are empty."""


@dataclass(frozen=True)
class Table:
    """One annotation file.

    Attributes:
        path: The file.
        rows: Its rows.
        task: Task of all rows; "" if the rows state it.
        folder: Folder of the videos, if the release specifies it.
    """

    path: Path
    rows: Sequence[Row]
    task: str = ""
    folder: str = ""


@dataclass(frozen=True)
class VLMEvalKitTable:
    """A data set of VLMEvalKit; `jobs.harness` writes and reads its prediction files.

    Attributes:
        dataset: Its name, as in the names of prediction files.
        columns: Returns the columns of a question's row in order, without `prediction`.
        cut: The data set for a copy of the release whose clips are already cut to files; `None` if
            it is the same one.
    """

    dataset: str
    columns: Callable[[Record], dict[str, Any]]
    cut: VLMEvalKitTable | None = None

    def of(self, records: Sequence[Record]) -> VLMEvalKitTable:
        """The data set that contains these questions, which are all questions of a release."""
        if self.cut is not None and all(record.clip is None for record in records):
            return self.cut
        return self


def right_letter(record: Record) -> str:
    """The letter of the correct option, or "" if there is none."""
    return "" if record.question.answer is None else letter_of(record.question.answer)


def written_answer(record: Record) -> str:
    """The release's answer as it is written."""
    return str(record.row.get("answer", ""))


def letter_target(record: Record) -> str:
    """`target` of tasks whose answers are letters."""
    return right_letter(record) or written_answer(record)


@dataclass(frozen=True)
class LmmsEvalSamples:
    """The logged samples of lmms-eval's tasks.

    Attributes:
        task: The task that asks all questions, as in the names of files, or a function from a
            question to its task.
        metrics: (question, reply) -> the objects that the task's `process_results` returns.
        target: Returns the result of the task's `doc_to_target`: a letter, a string or an index.
        doc_id: Returns the question's row in the task's table.
        key_in: Returns the string by which a sample's `metrics` identify its question; `None` if
            they do not. `doc_id` selects among several questions with the same string.
        by_doc_id: Whether `doc_id` alone identifies a question. False where the task's table has
            another order than the release: a sample must state its text as well.
        subtitled_task: Name of the task that asks all questions with subtitles; `None` for none.
    """

    task: str | Callable[[Record], str]
    metrics: Callable[[Record, str], dict[str, Any]]
    target: Callable[[Record], str] = letter_target
    doc_id: Callable[[Record], int] = lambda record: record.index
    key_in: Callable[[Sample], str | None] = lambda _: None
    by_doc_id: bool = True
    subtitled_task: str | None = None

    def task_of(self, record: Record, subtitled: bool = False) -> str:
        """Name of the task that contains a question."""
        if subtitled and self.subtitled_task is not None:
            return self.subtitled_task
        return self.task if isinstance(self.task, str) else self.task(record)


def fields_of_metric(metric: str, *names: str) -> Callable[[Sample], str | None]:
    """`key_in` that joins fields of the first metric whose name begins with `metric`."""

    def key_in(sample: Sample) -> str | None:
        for name, stated in sample.items():
            if name.startswith(metric) and isinstance(stated, dict):
                return " ".join(plain(stated.get(field)) for field in names)
        return None

    return key_in


def plain(text: object) -> str:
    """Collapse white space, which spreadsheets and tables change."""
    return " ".join(str(text).split())


def text_answer_columns(record: Record) -> dict[str, Any]:
    """Columns of VLMEvalKit's tables in which the answer is an option's text."""
    question = record.question
    known = question.answer is not None
    return {
        "video": record.row.get("video") or record.row.get("video_name"),
        "question": question.text,
        "answer": question.choices[question.answer or 0] if known else record.row["answer"],
        "candidates": str(list(question.choices)),
        "index": record.index,
    }


class AnnotatedBenchmark(Benchmark):
    """Reads a public release from a folder; nothing is downloaded and no video is opened.

    Args:
        root: Folder of the release, in one of the layouts named in `layout`.
        split: One of `splits`.
        seed: Ignored.
        protocol: One of `protocols`.

    Attributes:
        layout: Description of a release's folder for error messages.
        annotations: Names and patterns of the annotation file, preferred ones first.
        folders: Folders of the videos, preferred ones first.
        suffixes: Suffixes that a file of a video has beyond its name in a row.
        subtitle_folders: Folders of the subtitles.
        subtitle_suffix: Suffix of a file of subtitles, which is named after its video.
        video_columns: Columns that name the video; the first one that is not empty counts.
        id_column: Column of the question's id; empty or absent, questions are numbered by video.
        option_columns: Columns with the list of options; the first one in the row counts.
        option_form: How the options' lines are written in the release; rows that differ get a note.
        group_columns: Column by group of questions.
        length_column: Column of the video's length in seconds; "" for none.
        vlmevalkit_table: The data set in VLMEvalKit; `None` if it has none.
        lmms_eval_samples: The tasks in lmms-eval; `None` if it has none.

    Raises:
        ValueError: If a setting is unknown, `root` is not set, or a row is malformed.
        FileNotFoundError: If `root` or the annotations do not exist.
    """

    layout: ClassVar[str]
    annotations: ClassVar[Sequence[str]] = ()
    folders: ClassVar[Sequence[str]] = ("videos",)
    suffixes: ClassVar[Sequence[str]] = ("",)
    subtitle_folders: ClassVar[Sequence[str]] = ()
    subtitle_suffix: ClassVar[str] = ".srt"
    video_columns: ClassVar[Sequence[str]] = ("video",)
    id_column: ClassVar[str] = "question_id"
    option_columns: ClassVar[Sequence[str]] = ("options", "candidates")
    option_form: ClassVar[str] = LETTERED
    group_columns: ClassVar[Mapping[str, str]] = {}
    length_column: ClassVar[str] = ""
    vlmevalkit_table: ClassVar[VLMEvalKitTable | None] = None
    lmms_eval_samples: ClassVar[LmmsEvalSamples | None] = None
    root: Path

    def _open(self, root: str | None) -> None:
        """Find the release and read its tables."""
        title = self.title or self.name
        if not root:
            raise InputError(
                f"benchmark.root is missing; set it to the folder of {title}: {self.layout}"
            )
        path = Path(os.path.expanduser(root)).absolute()
        if not path.is_dir():
            raise MissingFileError(
                f"benchmark.root {root!r} is not a folder; {title} expects there: {self.layout}"
            )
        # A repository folder of the hub's cache holds snapshots.
        snapshots = [entry for entry in path.glob("snapshots/*") if entry.is_dir()]
        self.root = max(snapshots, key=lambda entry: entry.stat().st_mtime, default=path)
        self.media = MediaFinder(self.root)
        self._counts: Counter[str] = Counter()
        self.tables = self._tables()
        if not any(table.rows for table in self.tables):
            raise InputError(f"{self.tables[0].path}: holds no questions; download the file again")
        self._records: list[Record] | None = None

    def _tables(self) -> list[Table]:
        """Find and read the annotation files."""
        path = self._find_annotations(self.annotations)
        return [Table(path, read_rows(path))]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        """Convert one row to a `Record`.

        Args:
            index: Row number over all tables, from 0.
            number: Row number in this table, from 0.
            row: The row.
            table: The table it is from.

        Raises:
            ValueError: If the row is malformed.
        """
        video = self._video(row)
        text, choices, lines = self._question(row)
        answer = self._answer(row, choices)
        own_id = row.get(self.id_column)
        return Record(
            video_id=video,
            path=self._path(row, video),
            question=Question(
                id=self._numbered(f"{video}-") if is_missing(own_id) else str(own_id),
                text=text,
                choices=choices,
                answer=answer,
                groups=self._groups(row),
            ),
            notes=() if lines is None else form_notes(choices, lines, self.option_form),
            length_s=length_of(row, self.length_column),
        )

    def _video(self, row: Row) -> str:
        """Id of a row's video."""
        return text_of(row, *self.video_columns)

    def _path(self, row: Row, video: str) -> str:
        """Path of a row's video."""
        return self._video_path(video)

    def _question(self, row: Row) -> tuple[str, tuple[str, ...], str | None]:
        """Text and options of a row, and the options' lines as written if they have letters.

        Options are a list in a column of their own, or lines "(A) .." of the question.
        """
        text = text_of(row, "question")
        name = next((name for name in self.option_columns if name in row), None)
        both = None if name is not None and row[name] != [] else options_in(text)
        if both is not None:
            return *both, text.removeprefix(f"{both[0]}\n")
        if name is not None:
            return text, list_of(row, name), None
        raise InputError("the question has no lines '(A) ..' and there is no list of options")

    def _answer(self, row: Row, choices: Sequence[str]) -> int | None:
        """Index of a row's correct option."""
        return index_of_letter(text_of(row, "answer").strip(), choices)

    def _groups(self, row: Row) -> dict[str, str]:
        """Groups of a row's question."""
        return {group: text_of(row, column) for group, column in self.group_columns.items()}

    def _numbered(self, prefix: str, first: int = 1) -> str:
        """An id: the prefix, and a number that counts the ids with this prefix."""
        self._counts[prefix] += 1
        return f"{prefix}{self._counts[prefix] + first - 1}"

    def entries(self) -> Iterator[Record | Defect]:
        """Yield a record, or a defect for a malformed row, in the order of the release."""
        rows = ((table, n, row) for table in self.tables for n, row in enumerate(table.rows))
        seen: set[str] = set()
        self._counts.clear()
        for index, (table, number, row) in enumerate(rows):
            where = f"{table.path}, row {number + 1}"
            try:
                record = self._record(index, number, row, table)
                question = record.question
                if question.id in seen:
                    raise InputError(f"question id {question.id!r} occurs twice")
                seen.add(question.id)
                odd = option_notes(question.choices, question.answer, row.get("answer"))
                notes = (*odd, *record.notes)
                yield replace(record, notes=notes, row=row, index=index, number=number)
            except BlankRowError as error:
                yield Defect(where, f"{error}; skipped", fatal=False)
            except ValueError as error:
                yield Defect(where, str(error))

    def records(self) -> list[Record]:
        """Return all questions in the order of the release.

        Raises:
            ValueError: If any row is malformed: the first one, and how many there are.
        """
        if self._records is None:
            entries = list(self.entries())
            defects = [entry for entry in entries if isinstance(entry, Defect)]
            broken = [defect for defect in defects if defect.fatal]
            for defect in defects:
                if not defect.fatal:
                    logger.warning("%s: %s", defect.where, defect.problem)
            if broken:
                count = "1 row is" if len(broken) == 1 else f"{len(broken)} rows are"
                split = "" if self.split == "test" else f" --split {self.split}"
                raise InputError(
                    f"{broken[0].where}: {broken[0].problem}; {count} malformed, "
                    f"check all rows with: tango data check {self.name} {self.root}{split}"
                )
            self._records = [entry for entry in entries if isinstance(entry, Record)]
        return self._records

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the clips in the order in which the release first asks about them."""
        check_limit(limit)
        clips: dict[tuple[str, Clip], list[Record]] = {}
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
            raise MissingFileError(
                f"benchmark.subtitles true: no subtitles of {self.title or self.name} under "
                f"{self.root}; fetch them with: tango data get {self.name} --root {self.root} "
                "--only subtitles"
            )

    def subtitle_path(self, record: Record) -> str | None:
        """Path of the subtitles of a question's video; `None` for a video without subtitles."""
        return self.media.find(self.subtitle_folders, [record.video_id + self.subtitle_suffix])

    def _subtitles_of(self, record: Record) -> Subtitles:
        """Read the subtitles of a question's video."""
        path = self.subtitle_path(record)
        # Invalid UTF-8 in one of many subtitle files must not stop a job.
        return Subtitles(None if path is None else read_text(Path(path), errors="replace"))

    def missing_reason(self, record: Record) -> str | None:
        """Reason why a clip's file is not available; `None` if it should exist."""
        return None

    def _video_path(self, name: str) -> str:
        """Path of a video by its name in a row, or the path where it is expected."""
        names = [name + suffix for suffix in self.suffixes]
        own = [folder for folder in self.folders if folder not in ("", ".")]
        expected = next(filter(self.media.holds, own), own[0])
        return self.media.find(self.folders, names) or self.media.at(expected, names[0])

    def _find_annotations(self, patterns: Sequence[str]) -> Path:
        """Return the first existing annotation file.

        Raises:
            FileNotFoundError: If there is none, in one line that ends with the command that fetches
                them, if there is one.
        """
        found = find_file(self.root, patterns)
        if found is None:
            get = f"tango data get {self.name} --root {shlex.quote(str(self.root))}"
            can_get = self.releases and not is_outside(type(self))
            raise MissingFileError(
                f"{self.title or self.name} annotations not found under {self.root}; expected "
                f"there: {self.layout}{f'; to fetch them: {get}' if can_get else ''}"
            )
        return found

    def _complete(self, files: Mapping[str, Path]) -> list[Table]:
        """Read the files of a release that has one per task.

        Raises:
            FileNotFoundError: If one of them is missing.
        """
        missing = [path for path in files.values() if not path.is_file()]
        if missing:
            raise MissingFileError(
                f"{self.title} annotations under {missing[0].parent} are incomplete, missing "
                f"{', '.join(path.name for path in missing)}; expected layout: {self.layout}"
            )
        return [Table(path, read_rows(path), task) for task, path in files.items()]


def clip_id(name: str, clip: Clip) -> str:
    """Name a clip: its file's name, and the bounds if it has any."""
    return name if clip is None else f"{name}#{clip[0]!r}-{clip[1]!r}"
