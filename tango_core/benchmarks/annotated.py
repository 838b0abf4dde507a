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
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from tango_core.benchmarks import base, releases, tables
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.code_identity import is_outside
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import read_text
from tango_core.types import Question, Subtitles, VideoItem

logger = logging.getLogger(__name__)

Clip = tuple[float, float] | None
Sample = Mapping[str, Any]

# Videos and subtitles are looked for in the benchmark's own folders and in these, below the root
# and below the folders that lmms-eval makes, which have the benchmark's name.
_VIDEO_FOLDERS = ("videos", "video", "data")
_SUBTITLE_FOLDERS = ("subtitle", "subtitles", "subtitle/subtitle")
_VIDEO_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm", ".avi")


@dataclass(frozen=True)
class Record:
    """One question of a release, with its source row.

    Attributes:
        video_id: Names the clip.
        path: The video file or folder of frames, whether it exists or not.
        question: The question.
        clip: (start, end) in seconds, or `None` for the whole file.
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
    length_s: float | None = None
    row: tables.Row = field(default_factory=dict)
    index: int = 0
    number: int = 0


@dataclass(frozen=True)
class Table:
    """One annotation file.

    Attributes:
        path: The file.
        rows: Its rows.
    """

    path: Path
    rows: Sequence[tables.Row]


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


def first_key_of(*metrics: str) -> Callable[[Sample], str | None]:
    """`key_in` that returns the first key of the first of some metrics that a sample has."""

    def key_in(sample: Sample) -> str | None:
        stated = (sample.get(name) for name in metrics)
        return next((str(next(iter(one))) for one in stated if isinstance(one, dict) and one), None)

    return key_in


def plain(text: object) -> str:
    """Collapse white space, which spreadsheets and tables change."""
    return " ".join(str(text).split())


def table_columns(names: str, **templates: str) -> Callable[[Record], dict[str, Any]]:
    """`VLMEvalKitTable.columns` of some values of a question.

    Args:
        names: Names of the columns, separated by spaces: columns of the release's row, groups, or
            `index`, `video` (its id), `question_id`, `question`, `candidates` and `answer` (a
            letter).
        templates: Column -> string with such names in braces, for columns of other names.
    """

    def columns(record: Record) -> dict[str, Any]:
        question = record.question
        values = {
            **question.groups,
            **{name: None if tables.is_missing(own) else own for name, own in record.row.items()},
            "index": record.index,
            "video": record.video_id,
            "question_id": question.id,
            "question": question.text,
            "candidates": str(lettered(question.choices)),
            "answer": right_letter(record),
        }
        own = {name: template.format(**values) for name, template in templates.items()}
        return {name: own.get(name, values.get(name)) for name in names.split()}

    return columns


def letter_metric(
    metric: str,
    read: Callable[[str], str],
    names: str,
    number: Callable[[bool], float] = float,
    **templates: str,
) -> Callable[[Record, str], dict[str, Any]]:
    """`LmmsEvalSamples.metrics` of a task whose metric compares letters.

    Args:
        metric: Name of the metric.
        read: The task's reading of a reply: a letter or "".
        names: Names of the metric's fields, as in `table_columns`; also `pred_answer` and `score`.
        number: Type of the score.
        templates: As in `table_columns`.
    """
    columns = table_columns(names, **templates)

    def metrics(record: Record, reply: str) -> dict[str, Any]:
        letter = read(reply)
        values = {"pred_answer": letter, "score": number(letter == right_letter(record))}
        return {metric: {name: values.get(name, own) for name, own in columns(record).items()}}

    return metrics


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


class AnnotatedBenchmark(base.Benchmark):
    """Reads a public release from a folder; nothing is downloaded and no video is opened.

    Args:
        root: Folder of the release, in one of the layouts named in `layout`.
        split: One of `splits`.
        seed: Ignored.
        protocol: One of `protocols`.

    Attributes:
        layout: Description of a release's folder for error messages.
        annotations: Names and patterns of the annotation file, preferred ones first; also looked
            for in the Hugging Face cache below the root and beside it.
        split_annotations: The same for splits that have a file of their own.
        task_files: Task -> file of a release with one file per task; preferred to `annotations`.
        task_folders: Folders of these files.
        folders: The release's own folders of videos.
        subtitle_suffix: Suffix of a file of subtitles, which is named after its video.
        video_columns: Columns that name the video; the first one that is not empty counts.
        id_column: Column of the question's id; empty or absent, questions are numbered by video.
        option_columns: Columns with the list of options; the first one that is not empty counts.
            `"option{}"` stands for a column per option, from `option0` to an empty one or "N/A".
        options_have_letters: Whether the entries of that list begin with their letters.
        answer_column: Column of the answer.
        answer_form: What it holds: the correct option's letter, text, or index from 0.
        hidden_splits: Splits whose answers may be empty.
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
    split_annotations: ClassVar[Mapping[str, Sequence[str]]] = {}
    task_files: ClassVar[Mapping[str, str]] = {}
    task_folders: ClassVar[Sequence[str]] = (".",)
    folders: ClassVar[Sequence[str]] = ()
    subtitle_suffix: ClassVar[str] = ".srt"
    video_columns: ClassVar[Sequence[str]] = ("video",)
    id_column: ClassVar[str] = "question_id"
    option_columns: ClassVar[Sequence[str]] = ("options", "candidates")
    options_have_letters: ClassVar[bool] = False
    answer_column: ClassVar[str] = "answer"
    answer_form: ClassVar[Literal["letter", "text", "index"]] = "letter"
    hidden_splits: ClassVar[Sequence[str]] = ()
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
        self.media = releases.MediaFinder(self.root)
        self._counts: Counter[str] = Counter()
        self.tables = self._tables()
        if not any(table.rows for table in self.tables):
            raise InputError(f"{self.tables[0].path}: holds no questions; download the file again")
        self._records: list[Record] | None = None

    def _tables(self) -> list[Table]:
        """Find and read the annotation files; rows of a file of one task get its `task_type`.

        Raises:
            FileNotFoundError: If there is none, or only a part of those with one task each.
        """
        files = self.task_files.values()
        patterns = [f"{folder}/{file}" for folder in self.task_folders for file in files]
        first = releases.find_file(self.root, patterns)
        if first is None:
            names = self.split_annotations.get(self.split, self.annotations)
            path = self._find_annotations(names)
            return [Table(path, self._rows(path))]
        paths = {task: first.parent / file for task, file in self.task_files.items()}
        missing = [path.name for path in paths.values() if not path.is_file()]
        if missing:
            raise MissingFileError(
                f"{self.title} annotations under {first.parent} are incomplete, missing "
                f"{', '.join(missing)}; expected layout: {self.layout}"
            )
        return [
            Table(path, [{**row, "task_type": task} for row in self._rows(path)])
            for task, path in paths.items()
        ]

    def _rows(self, path: Path) -> list[tables.Row]:
        """Read the rows of a file, one per question."""
        return tables.read_rows(path, self._rows_of)

    def _rows_of(self, content: Any) -> list[tables.Row]:
        """Rows in the content of a file, which is a list of rows or another JSON document."""
        rows: list[tables.Row] = content
        return rows

    def _record(self, index: int, number: int, row: tables.Row, table: Table) -> Record:
        """Convert one row to a `Record`.

        Args:
            index: Row number over all tables, from 0.
            number: Row number in this table, from 0.
            row: The row.
            table: The table it is from.

        Raises:
            ValueError: If the row is malformed.
        """
        video, clip = self._video(row), self._clip(row)
        return Record(
            video_id=clip_id(video, clip),
            path=self._video_path(self._file(row), *self._folders(row)),
            question=self._asked(row, self._id(row, video, number)),
            clip=clip,
            length_s=tables.length_of(row, self.length_column),
        )

    def _asked(self, row: tables.Row, question_id: str) -> Question:
        """The question of a row."""
        text, choices = self._question(row)
        return Question(question_id, text, choices, self._answer(row, choices), self._groups(row))

    def _file(self, row: tables.Row) -> str:
        """Name of a row's video, with or without the suffix of its file."""
        return tables.text_of(row, *self.video_columns)

    def _folders(self, row: tables.Row) -> Sequence[str]:
        """Folders of this row's video alone, where the release has some."""
        return ()

    def _clip(self, row: tables.Row) -> Clip:
        """Part of the video that a row asks about; `None` for the whole file."""
        return None

    def _id(self, row: tables.Row, video: str, number: int) -> str:
        """Id of a row's question; `number` is that of the row in its table, from 0."""
        own = row.get(self.id_column)
        return self._numbered(f"{video}-") if tables.is_missing(own) else str(own)

    def _video(self, row: tables.Row) -> str:
        """Id of a row's video."""
        return _without_suffix(self._file(row))

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        """Text and options of a row.

        Options are a list in a column of their own, or lines "(A) .." of the question.
        """
        text, every = tables.text_of(row, "question"), self.option_columns
        name = next((one for one in every if not tables.is_missing(row.get(one.format(0)))), None)
        both = None if name is not None and row.get(name) != [] else tables.options_in(text)
        if both is not None:
            return both
        if name is None:
            raise InputError("the question has no lines '(A) ..' and there is no list of options")
        choices = (tables.numbered_of if "{}" in name else tables.list_of)(row, name)
        return text, tables.without_letters(choices) if self.options_have_letters else choices

    def _answer(self, row: tables.Row, choices: Sequence[str]) -> int | None:
        """Index of a row's correct option; `None` if it is hidden or none of them."""
        column = self.answer_column
        if self.split in self.hidden_splits and tables.is_missing(row.get(column)):
            return None
        if self.answer_form == "text":
            return tables.index_of_text(tables.answer_text_of(row), choices)
        if self.answer_form == "letter":
            return tables.index_of_letter(tables.text_of(row, column).strip().strip("()."), choices)
        answer = int(tables.number_of(row, column))
        if not 0 <= answer < len(choices):
            raise InputError(f"{column} {answer} is none of the {len(choices)} options")
        return answer

    def _groups(self, row: tables.Row) -> dict[str, str]:
        """Groups of a row's question."""
        return {group: tables.text_of(row, column) for group, column in self.group_columns.items()}

    def _numbered(self, prefix: str, first: int = 1) -> str:
        """An id: the prefix, and a number that counts the ids with this prefix."""
        self._counts[prefix] += 1
        return f"{prefix}{self._counts[prefix] + first - 1}"

    def entries(self) -> Iterator[Record | base.Defect]:
        """Yield a record, or a defect for a malformed row, in the order of the release."""
        rows = ((table, n, row) for table in self.tables for n, row in enumerate(table.rows))
        seen: set[str] = set()
        self._counts.clear()
        for index, (table, number, row) in enumerate(rows):
            where = f"{table.path}, row {number + 1}"
            if all(str(row.get(name, "-") or "").strip() == "" for name in ("question", "answer")):
                yield base.Defect(where, "question and answer are empty; skipped", fatal=False)
                continue
            try:
                record = self._record(index, number, row, table)
                question = record.question
                if question.id in seen:
                    raise InputError(f"question id {question.id!r} occurs twice")
                seen.add(question.id)
                yield replace(record, row=row, index=index, number=number)
                written = row.get("answer")
                if question.choices and question.answer is None and not tables.is_missing(written):
                    problem = f"the answer {written!r} is none of the options; not scored"
                    yield base.Defect(where, problem, fatal=False)
            except ValueError as error:
                yield base.Defect(where, str(error))

    def records(self) -> list[Record]:
        """Return all questions in the order of the release.

        Raises:
            ValueError: If any row is malformed: the first one, and how many there are.
        """
        if self._records is None:
            entries = list(self.entries())
            defects = [entry for entry in entries if isinstance(entry, base.Defect)]
            for defect in defects:
                if not defect.fatal:
                    logger.warning("%s: %s", defect.where, defect.problem)
            broken = [defect for defect in defects if defect.fatal]
            if broken:
                split = "" if self.split == "test" else f" --split {self.split}"
                raise InputError(
                    f"{broken[0].where}: {broken[0].problem}; malformed rows: {len(broken)}, "
                    f"check all rows with: tango data check {self.name} {self.root}{split}"
                )
            self._records = [entry for entry in entries if isinstance(entry, Record)]
        return self._records

    def items(self, limit: int | None = None) -> Iterator[VideoItem]:
        """Yield the clips in the order in which the release first asks about them."""
        base.check_limit(limit)
        yield from islice(self.clips(self.records()), limit)

    def clips(self, records: Sequence[Record]) -> Iterator[VideoItem]:
        """Yield the clips that some questions are about, each with all of them."""
        clips: dict[tuple[str, Clip], list[Record]] = {}
        for record in records:
            clips.setdefault((record.path, record.clip), []).append(record)
        for (path, clip), own in clips.items():
            yield VideoItem(
                video_id=own[0].video_id,
                path=path,
                clip=clip,
                questions=tuple(record.question for record in own),
                subtitles=self._subtitles_of(own[0]) if self.subtitles else None,
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
        file = self._subtitle_file(record)
        folders = (*self._below(_SUBTITLE_FOLDERS), *(f"../{one}" for one in _SUBTITLE_FOLDERS))
        return None if file is None else self.media.find(folders, [file])

    def _subtitle_file(self, record: Record) -> str | None:
        """Name of the file of subtitles; `None` if the release says that there is none."""
        return record.video_id + self.subtitle_suffix

    def _subtitles_of(self, record: Record) -> Subtitles:
        """Read the subtitles of a question's video."""
        path = self.subtitle_path(record)
        # Invalid UTF-8 in one of many subtitle files must not stop a job.
        text = None if path is None else read_text(Path(path), errors="replace")
        if text is not None and text.lstrip("\ufeff \r\n").startswith(("WEBVTT", "[Script Info]")):
            logger.warning("%s is not SubRip; convert it, e.g. with ffmpeg -i", path)
        return Subtitles(text)

    def missing_reason(self, record: Record) -> str | None:
        """Reason why a clip's file is not available; `None` if it should exist."""
        return None

    def _video_path(self, name: str, *folders: str) -> str:
        """Path of a video, or the path where it is expected.

        Args:
            name: Its name in a row.
            folders: Folders of this video alone, where the release has some.
        """
        is_file = _without_suffix(name) != name
        names = [name] if is_file else [name + suffix for suffix in _VIDEO_SUFFIXES]
        every = (*folders, *self.folders, *_VIDEO_FOLDERS)
        found = self.media.find((*self._below(every), ".", self.name), names)
        own = folders or every
        return found or self.media.at(next(filter(self.media.holds, own), own[0]), names[0])

    def _below(self, folders: Sequence[str]) -> list[str]:
        """Folders below the root and below those that lmms-eval makes for the benchmark."""
        parents = ("", f"{self.name}/", f"datasets/{self.name}/")
        return [parent + folder for parent in parents for folder in folders]

    def _find_annotations(self, patterns: Sequence[str]) -> Path:
        """Return the first existing annotation file.

        Raises:
            FileNotFoundError: If there is none, in one line that ends with the command that fetches
                them, if there is one.
        """
        found = self._find(patterns)
        if found is None:
            get = f"tango data get {self.name} --root {shlex.quote(str(self.root))}"
            can_get = self.releases and not is_outside(type(self))
            raise MissingFileError(
                f"{self.title or self.name} annotations not found under {self.root}; expected "
                f"there: {self.layout}{f'; to fetch them: {get}' if can_get else ''}"
            )
        return found

    def _find(self, patterns: Sequence[str]) -> Path | None:
        """Find a file below the root, or in a copy of the releases in the Hugging Face cache."""
        names = dict.fromkeys(release.repository.rpartition("/")[2] for release in self.releases)
        cached = [f"hub/datasets--*--{name}/snapshots/*/" for name in names]
        folders = ("", *cached, *(f"../{folder}" for folder in cached))
        return releases.find_file(self.root, [f"{at}{own}" for at in folders for own in patterns])


def _without_suffix(file: str) -> str:
    """A file of a video without the suffix; names may hold full stops of their own."""
    path = PurePosixPath(file)
    is_file = path.suffix.lower() in _VIDEO_SUFFIXES
    return file[: -len(path.suffix)] if is_file else file


def clip_id(name: str, clip: Clip) -> str:
    """Name a clip: its file's name, and the bounds if it has any."""
    return name if clip is None else f"{name}#{clip[0]!r}-{clip[1]!r}"
