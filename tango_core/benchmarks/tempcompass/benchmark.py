"""TempCompass: 410 short videos, five dimensions of time, four forms of asking about each.

Liu et al., "TempCompass: Do Video LLMs Really Understand Videos?", 2024,
https://arxiv.org/abs/2403.00476. Data: `lmms-lab/TempCompass` on the Hugging Face hub, and the
folder `questions` of llyx97/TempCompass. Captioning needs a judge: its replies are recorded and not
scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.layout import find_file
from tango_core.benchmarks.annotations.records import Record, Table, option_notes
from tango_core.benchmarks.annotations.tables import (
    Row,
    is_missing,
    list_of,
    read_json,
    read_rows,
    text_of,
)
from tango_core.benchmarks.facts import CrossTable
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.tempcompass import lmms_eval, vlmevalkit
from tango_core.benchmarks.tempcompass.tasks import (
    CAPTIONING,
    DIMENSIONS,
    TASKS,
    YES_NO,
    YES_OR_NO,
    options_in,
)
from tango_core.types import Question

_REPOSITORIES = ("lmms-lab--TempCompass", "lmms-eval--TempCompass")
_HUBS = tuple(
    f"{up}hub/datasets--{name}/snapshots/*/" for name in _REPOSITORIES for up in ("", "../")
)
_NAMES = ("{task}/test-00000-of-00001.parquet", "{task}.json", "questions/{task}.json")
# VLMEvalKit's tables, with the forms that each one holds.
_TSVS = ("TempCompass_MCQ.tsv", "TempCompass_Captioning.tsv", "TempCompass_YorN.tsv")
_FOLDERS = ("videos", "tempcompass/videos", "video", ".")
_PARTS = (
    ReleasePart("annotations", tuple(f"{task}/test-*.parquet" for task in TASKS)),
    ReleasePart("videos", ("tempcompass_videos.zip",)),
)
_LICENCE = "see the page of the data set; the videos are of ShutterStock, under its terms"


class TempCompassBenchmark(AnnotatedBenchmark):
    """TempCompass from the hub's tables, the authors' JSON files, or VLMEvalKit's three TSVs.

    A form of asking whose file is absent is not asked; one must be there.
    """

    name = "tempcompass"
    title = "TempCompass"
    layout = (
        "multi-choice/test-00000-of-00001.parquet or questions/multi-choice.json, the same of "
        "caption_matching, captioning and yes_no, and videos/<video_id>.mp4"
    )
    splits: ClassVar = {"test": 7540}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    cross_table = CrossTable("dimension", ("task",))
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    releases = (
        Release("lmms-lab/TempCompass", _PARTS, _LICENCE),
        Release("lmms-eval/TempCompass", _PARTS, _LICENCE),
    )

    def _tables(self) -> list[Table]:
        patterns = {
            task: [f"{base}{name}".format(task=task) for base in ("", *_HUBS) for name in _NAMES]
            for task in TASKS
        }
        found = {task: find_file(self.root, names) for task, names in patterns.items()}
        if any(found.values()):
            tables = {task: _rows(path, task) for task, path in found.items() if path is not None}
        else:
            tables = self._of_vlmevalkit(patterns[TASKS[0]])
            found = dict.fromkeys(tables, self.root / _TSVS[0])
        asked: Counter[tuple[str, str, str]] = Counter()
        self._numbers: list[int] = []  # of a question among those of its form, video and dimension
        for task, rows in tables.items():
            for row in rows:
                place = (task, str(row.get("video_id")), str(row.get("dim")))
                asked[place] += 1
                self._numbers.append(asked[place])
        return [Table(found[task] or self.root, rows, task) for task, rows in tables.items()]

    def _of_vlmevalkit(self, looked_for: list[str]) -> dict[str, list[Row]]:
        """The rows of VLMEvalKit's tables by form; at least one table must be there."""
        self._find_annotations([*looked_for[: len(_NAMES)], *_TSVS])
        tables: dict[str, list[Row]] = {}
        for name in _TSVS:
            path = self.root / name
            for row in read_rows(path) if path.is_file() else ():
                lines = [text_of(row, "question")]
                if not is_missing(row.get("candidates")):
                    lines += list_of(row, "candidates")
                own = {"video_id": row.get("video"), "question": "\n".join(lines)}
                tables.setdefault(text_of(row, "task_type"), []).append({**row, **own})
        unknown = [task for task in tables if task not in TASKS]
        if unknown:
            raise ValueError(
                f"{self.root}: unknown task_type {unknown[0]!r}; known are {', '.join(TASKS)}"
            )
        return {task: tables[task] for task in TASKS if task in tables}

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        task, video, text = table.task, text_of(row, "video_id"), text_of(row, "question")
        dimension, written = text_of(row, "dim"), text_of(row, "answer")
        if dimension not in DIMENSIONS:
            raise ValueError(f"unknown dim {dimension!r}; known are {', '.join(DIMENSIONS)}")
        choices: tuple[str, ...] = ()
        answer: int | None = None
        notes: list[str] = []
        if task == YES_NO:
            choices = YES_OR_NO
            if written.strip().lower() not in choices:
                raise ValueError(f"answer {written!r} must be yes or no")
            answer = choices.index(written.strip().lower())
        elif task != CAPTIONING:
            options = options_in(text, task)
            choices = tuple(option.text for option in options)
            lines = [option.line.strip() for option in options]
            answer = lines.index(written.strip()) if written.strip() in lines else None
            notes = option_notes(choices, answer, written)
        return Record(
            index=index,
            row=row,
            video_id=video,
            path=self._path(video),
            clip=None,
            question=Question(
                id=f"{task}/{video}/{dimension}/{self._numbers[index]}",
                text=text,
                choices=choices,
                answer=answer,
                groups={"task": task, "dimension": dimension},
            ),
            notes=tuple(notes),
            number=number,
        )

    def _path(self, video: str) -> str:
        """Return where the video is, or where the release would put it."""
        found = self.media.find(_FOLDERS, [f"{video}.mp4"])
        return found or self.media.at(
            next(filter(self.media.holds, _FOLDERS[:-1]), _FOLDERS[0]), f"{video}.mp4"
        )


def _rows(path: Path, task: str) -> list[Row]:
    """Rows of one form, from a table or from the authors' `{video: {dim: [question, ..]}}`.

    Raises:
        ValueError: If the file is neither.
    """
    if path.suffix != ".json":
        return read_rows(path)
    content = read_json(path)
    if not isinstance(content, dict):
        return read_rows(path)
    try:
        return list(_flattened(content))
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"{path}: must hold {{video: {{dimension: [question, ..]}}}} for {task}; "
            "download the file again"
        ) from error


def _flattened(content: Mapping[str, Any]) -> Iterator[Row]:
    """Every question with the video and the dimension that it stands under."""
    for video, dimensions in content.items():
        for dimension, questions in dimensions.items():
            for question in questions:
                yield {"video_id": video, "dim": dimension, **question}
