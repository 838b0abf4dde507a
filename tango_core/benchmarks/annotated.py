"""Benchmarks with annotation tables and a folder of videos."""

from __future__ import annotations

import logging
import os
import re
import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks.base import Benchmark, Defect
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, letter_of, lettered
from tango_core.benchmarks.tables import Row, read_rows
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
        notes: Remarks about irregularities of this row.
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
        cut: The data set of a copy of the release in which no question names a part of a file,
            because clips are cut already; `None` if that is the same one.
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
    """The release's answer text if it is not one of the options."""
    return str(record.row.get("answer", ""))


def letter_target(record: Record) -> str:
    """`target` of tasks whose answers are letters."""
    return right_letter(record) or written_answer(record)


@dataclass(frozen=True)
class LmmsEvalSamples:
    """The logged samples of lmms-eval's tasks.

    Attributes:
        task: The task that asks all questions, as it stands in the names of files, or question ->
            task.
        metrics: (question, reply) -> the objects that the task's `process_results` returns.
        target: Returns the result of the task's `doc_to_target`: a letter, a string or an index.
        doc_id: Returns the question's row in the task's table.
        key_in: Sample with its `metrics` -> a text by which it is known which question it is about;
            `None` if it does not say. Of several questions with the same text `doc_id` names one.
        by_doc_id: Whether `doc_id` alone names a question. Not where the task's table has another
            order than the release: a sample must state its text as well.
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
    """`key_in` that joins fields of the object of a metric whose name begins so."""

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
        suffixes: What the name of a video in a row is followed by in the name of its file.
        subtitle_folders: Folders that subtitles are in.
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
        self.root = _resolve_root(root, self.title or self.name, self.layout)
        self.media = MediaFinder(self.root)
        self.tables = self._tables()
        if not any(table.rows for table in self.tables):
            raise InputError(f"{self.tables[0].path}: holds no questions; download the file again")
        self._records: list[Record] | None = None

    def _tables(self) -> list[Table]:
        """Find and read the annotation files."""
        path = self._find_annotations(self.annotations)
        return [Table(path, read_rows(path))]

    @abstractmethod
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

    def entries(self) -> Iterator[Record | Defect]:
        """Yield a record, or a defect for a malformed row, in the order of the release."""
        rows = ((table, n, row) for table in self.tables for n, row in enumerate(table.rows))
        seen: set[str] = set()
        for index, (table, number, row) in enumerate(rows):
            where = f"{table.path}, row {number + 1}"
            try:
                record = self._record(index, number, row, table)
                if record.question.id in seen:
                    raise InputError(f"question id {record.question.id!r} occurs twice")
                seen.add(record.question.id)
                yield replace(record, row=row, index=index, number=number)
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
            for defect in defects:
                if not defect.fatal:
                    logger.warning("%s: %s", defect.where, defect.problem)
            broken = [defect for defect in defects if defect.fatal]
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
        return None

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
        put = next(filter(self.media.holds, own), own[0])
        return self.media.find(self.folders, names) or self.media.at(put, names[0])

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


def check_limit(limit: int | None) -> None:
    """Raise for a negative number of clips.

    Raises:
        ValueError: In one line.
    """
    if limit is not None and limit < 0:
        raise InputError(f"limit must be 0 or more, got {limit}")


def clip_id(name: str, clip: Clip) -> str:
    """Name a clip: its file's name, and the bounds if it has any."""
    return name if clip is None else f"{name}#{clip[0]!r}-{clip[1]!r}"


def index_of_letter(letter: str, choices: Sequence[str]) -> int:
    """Index of the option named by a release's letter.

    Raises:
        ValueError: If it names none.
    """
    index = LETTERS.find(letter) if len(letter) == 1 else -1
    if not 0 <= index < len(choices):
        raise InputError(f"answer {letter!r} is not a letter of its {len(choices)} options")
    return index


def index_of_text(text: str, choices: Sequence[str]) -> int | None:
    """Index of the last option with this text, as in VLMEvalKit; `None` for none."""
    return max((index for index, choice in enumerate(choices) if choice == text), default=None)


def options_in(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Question and options of a text that holds both, as lines "(A) .."; `None` if it does not."""
    parts = re.split(r"\n\(([A-Z])\) ?", text)
    letters = "".join(parts[1::2])
    if not letters or letters != LETTERS[: len(letters)]:
        return None
    return parts[0], tuple(part.removesuffix("\n") for part in parts[2::2])


def option_notes(choices: Sequence[str], answer: int | None, answer_text: str = "") -> list[str]:
    """Notes about irregular options of a question."""
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


def form_notes(choices: Sequence[str], written: str, form: str = "{letter}. {text}") -> list[str]:
    """Note if a release's option lines differ from the form used in the prompt."""
    if "\n".join(lettered(choices, form)) == written:
        return []
    example = form.format(letter="A", text="text")
    return [f"options are not written {example!r}; the prompt has them in that form"]


def numbers_among(keys: Iterable[Hashable]) -> list[int]:
    """Running count of every key among equal keys, from 1."""
    counts: Counter[Hashable] = Counter()
    numbers = []
    for key in keys:
        counts[key] += 1
        numbers.append(counts[key])
    return numbers


def in_hub_cache(repository: str, *names: str) -> tuple[str, ...]:
    """Patterns of files in the Hugging Face cache below the root and beside it."""
    folder = f"hub/datasets--{repository.replace('/', '--')}/snapshots/*"
    return tuple(f"{up}{folder}/{name}" for up in ("", "../") for name in names)


def find_file(root: Path, patterns: Sequence[str]) -> Path | None:
    """Return the first file that one of the patterns names; of several the last by name.

    Args:
        root: Where the patterns start; they may begin with `../`.
        patterns: File names or glob patterns, the preferred ones first.
    """
    for pattern in patterns:
        base = root.parent if pattern.startswith("../") else root
        found = sorted(path for path in base.glob(pattern.removeprefix("../")) if path.is_file())
        if found:
            return found[-1]
    return None


class MediaFinder:
    """Looks up files by name; every folder is listed once, as network disks are slow to list.

    Args:
        root: Folder that relative folders start from.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._listings: dict[str, frozenset[str]] = {}

    def find(self, folders: Sequence[str], names: Sequence[str]) -> str | None:
        """Return the first of `folders` x `names` that exists, as an absolute path.

        Args:
            folders: Relative to the root, the preferred ones first.
            names: Names in these folders, which may have sub-folders of their own.
        """
        for path in (self.at(folder, name) for folder in folders for name in names):
            parent, leaf = os.path.split(path)
            if leaf in self._names(parent):
                return path
        return None

    def at(self, folder: str, name: str) -> str:
        """Return the absolute path of a name in a folder, whether it exists or not."""
        return os.path.normpath(os.path.join(self.root, folder, name))

    def holds(self, folder: str) -> bool:
        """Whether the folder exists and is not empty."""
        return bool(self._names(self.at(folder, "")))

    def _names(self, folder: str) -> frozenset[str]:
        """Names in a folder; empty if it cannot be listed."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = frozenset()
        return self._listings[folder]


def _resolve_root(root: str | None, title: str, layout: str) -> Path:
    """The folder that holds the release; a repository folder of the hub's cache has a snapshot."""
    if not root:
        raise InputError(f"benchmark.root is missing; set it to the folder of {title}: {layout}")
    path = Path(os.path.expanduser(root)).absolute()
    if not path.is_dir():
        raise MissingFileError(
            f"benchmark.root {root!r} is not a folder; {title} expects there: {layout}"
        )
    snapshots = [entry for entry in path.glob("snapshots/*") if entry.is_dir()]
    return max(snapshots, key=lambda entry: entry.stat().st_mtime, default=path)
