"""MLVU, dev set: the seven multiple-choice tasks on videos of three minutes to two hours.

Zhou et al., "MLVU: Benchmarking Multi-task Long Video Understanding", 2024,
https://arxiv.org/abs/2406.04264. Data: `MLVU/MVLU` on the Hugging Face hub, or `sy1998/MLVU_dev`,
the same questions as lmms-eval reads them.

The two harnesses mean different things by M-Avg: VLMEvalKit the share of right answers, which is
`accuracy`, and lmms-eval the mean over the seven tasks, which is the mean of
`accuracy_by["task"]` (`reports.macro_average`). The published comparisons use the former.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.layout import find_file
from tango_core.benchmarks.annotations.records import (
    BlankRowError,
    Record,
    Table,
    option_notes,
)
from tango_core.benchmarks.annotations.tables import (
    Row,
    answer_text_of,
    is_missing,
    length_of,
    list_of,
    read_rows,
    text_of,
)
from tango_core.benchmarks.facts import PaperColumn
from tango_core.benchmarks.mlvu import lmms_eval, vlmevalkit
from tango_core.benchmarks.mlvu.tasks import TASKS
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.types import Question

_ALIASES = {"findNeedle": "needle"}

_JSON_FOLDERS = ("MLVU/json", "json", ".")
_HUB = "hub/datasets--sy1998--MLVU_dev/snapshots/*"
_ONE_TABLE = (
    "MLVU_MCQ.tsv",
    "data/test-*.parquet",
    "test-*.parquet",
    "mlvu_dev.*json*",
    "mlvu_dev.parquet",
    f"{_HUB}/data/test-*.parquet",
    f"../{_HUB}/data/test-*.parquet",
)
_FLAT_FOLDERS = (".", "video", "videos", "mlvu")


class MLVUBenchmark(AnnotatedBenchmark):
    """MLVU dev from its seven JSON files, VLMEvalKit's `MLVU_MCQ.tsv`, or lmms-eval's one table.

    `"dev"` and the recipe's default name `"test"` are the same split.
    """

    name = "mlvu"
    title = "MLVU"
    layout = (
        "MLVU/json/1_plotQA.json to 7_topic_reasoning.json with MLVU/video/<stem>/, "
        "or one table with video_name beside the videos"
    )
    splits: ClassVar = {"test": 2174, "dev": 2174}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    paper_column = PaperColumn(4)
    macro_group = "task"
    macro_title = "M-Avg"
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    # Only the seven tasks with options: the release also has two that are answered in free text.
    releases = (
        Release(
            "MLVU/MVLU",
            (
                ReleasePart("annotations", tuple(f"MLVU/json/{it}.json" for it in TASKS.values())),
                ReleasePart("videos", tuple(f"MLVU/video/{it}/*" for it in TASKS.values())),
            ),
            "CC-BY-NC-SA 4.0",
            gated="who leaves contact information on the hub",
        ),
        Release(
            "sy1998/MLVU_dev",
            (
                ReleasePart("annotations", ("data/test-*.parquet", "*.json"), any_of=True),
                ReleasePart("videos", ("*video_part_*.zip",)),
            ),
            "CC-BY-NC-SA 4.0, as the release it was made from",
        ),
    )

    def _tables(self) -> list[Table]:
        for folder in _JSON_FOLDERS:
            files = {task: self.root / folder / f"{stem}.json" for task, stem in TASKS.items()}
            found = {task: path for task, path in files.items() if path.is_file()}
            missing = [path.name for path in files.values() if not path.is_file()]
            if found and missing:
                raise FileNotFoundError(
                    f"MLVU annotations under {self.root / folder} are incomplete, "
                    f"missing {', '.join(missing)}; expected layout: {self.layout}"
                )
            if found:
                return [Table(path, read_rows(path), task) for task, path in found.items()]
        path = find_file(self.root, _ONE_TABLE)
        if path is None:
            jsons = [f"{folder}/{stem}.json" for folder in _JSON_FOLDERS for stem in ("1_plotQA",)]
            path = self._find_annotations([*jsons, *_ONE_TABLE])
        return [Table(path, read_rows(path))]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        if all(not str(row.get(name) or "").strip() for name in ("question", "answer")):
            raise BlankRowError("question and answer are empty")
        task = table.task or text_of(row, "task_type")
        task = _ALIASES.get(task, task)
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
        text, choices = _question(row)
        written = answer_text_of(row)
        answer = _answer(written, choices, is_letter="video_name" in row)
        file = text_of(row, "video", "video_name")
        path = self._path(TASKS[task], file)
        return Record(
            index=index,
            row=row,
            video_id=Path(path).relative_to(self._media_root(path)).with_suffix("").as_posix(),
            path=path,
            clip=None,
            question=Question(
                id=f"{task}-{number}" if table.task else f"{task}-{index}",
                text=text,
                choices=choices,
                answer=answer,
                groups={"task": task},
            ),
            notes=tuple(option_notes(choices, answer, written)),
            length_s=length_of(row, "duration"),
        )

    def _path(self, stem: str, file: str) -> str:
        """Return where the video is, or where the release would put it."""
        folders = (f"MLVU/video/{stem}", f"video/{stem}", stem)
        found = self.media.find(folders, [file]) or self.media.find(_FLAT_FOLDERS, [file])
        return found or self.media.at(
            next(filter(self.media.holds, folders), folders[0 if self.media.holds("MLVU") else 1]),
            file,
        )

    def _media_root(self, path: str) -> Path:
        """Return the folder that a clip's id is relative to: that of all videos."""
        parent = Path(path).parent
        return parent.parent if parent.name in TASKS.values() else parent


def _question(row: Row) -> tuple[str, tuple[str, ...]]:
    """Read text and options; lmms-eval's table holds both in one field, "(A) .." line by line."""
    text = text_of(row, "question")
    if "video_name" not in row:
        return text, list_of(row, "candidates")
    parts = re.split(r"\n\(([A-Z])\) ?", text)
    letters = "".join(parts[1::2])
    if letters and letters == LETTERS[: len(letters)]:
        return parts[0], tuple(part.removesuffix("\n") for part in parts[2::2])
    if not is_missing(row.get("candidates")):
        return text, list_of(row, "candidates")
    raise ValueError("the question has no lines '(A) ...' and there are no candidates")


def _answer(written: str, choices: tuple[str, ...], is_letter: bool) -> int | None:
    """Find the right option; of equal ones the last, as VLMEvalKit does; `None` if it is none."""
    if is_letter and re.fullmatch(r"\(?[A-Z]\)?", written.strip()):
        index = LETTERS.index(written.strip("() "))
        return index if index < len(choices) else None
    same = [index for index, choice in enumerate(choices) if choice == written]
    return same[-1] if same else None
