"""LVBench: 103 videos of more than an hour on average, 1,549 questions of six types.

Wang et al., "LVBench: An Extreme Long Video Understanding Benchmark", 2024,
https://arxiv.org/abs/2406.08035. Data: `zai-org/LVBench` on the Hugging Face hub, which holds no
videos, and `lmms-eval/LVBench` with them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import Record, Table, index_of_letter, option_notes
from tango_core.benchmarks.annotations.tables import Row, is_missing, list_of, read_rows, text_of
from tango_core.benchmarks.lvbench import lmms_eval
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered
from tango_core.types import Question

_META = "video_info.meta.jsonl"
_HUB = "hub/datasets--lmms-eval--LVBench/snapshots/*"
_PARQUETS = ("data/train-*.parquet", "train-*.parquet", "*/train-*.parquet")
_ANNOTATIONS = (
    *_PARQUETS,
    _META,
    f"data/{_META}",
    "lvbench.jsonl",
    "lvbench.json",
    *(f"{up}{_HUB}/{name}" for up in ("", "../") for name in _PARQUETS),
)
_FOLDERS = ("", "videos", "all_videos", "lvbench", "lvbench/videos", "lvbench/all_videos", "video")
_SUFFIXES = (".mp4", ".mkv", ".webm")
_OPTION = re.compile(r"\n\(([A-Z])\) ?")
_LICENCE = "CC-BY-NC-SA 4.0, research only"


class LVBenchBenchmark(AnnotatedBenchmark):
    """LVBench from the authors' `video_info.meta.jsonl` or the table that lmms-eval reads."""

    name = "lvbench"
    title = "LVBench"
    layout = f"{_META} or data/train-*.parquet, and videos/<key>.mp4"
    splits: ClassVar = {"test": 1549, "train": 1549}
    protocols: ClassVar = lmms_eval.PROTOCOLS
    several_valued: ClassVar = ("type",)
    lmms_eval_samples = lmms_eval.SAMPLES
    releases = (
        Release(
            "lmms-eval/LVBench",
            (
                ReleasePart("annotations", ("*.parquet",)),
                # lmms-eval unpacks every archive into one folder.
                ReleasePart("videos", ("*.zip", "*.tar*", "*.mp4"), any_of=True, into=""),
            ),
            _LICENCE,
        ),
        Release(
            "zai-org/LVBench",
            (ReleasePart("annotations", (_META,)),),
            _LICENCE,
            notes=(
                "the videos are on YouTube, by the keys in the table; some are gone: put what you "
                "have into videos/<key>.mp4",
            ),
        ),
    )

    def _tables(self) -> list[Table]:
        path = self._find_annotations(_ANNOTATIONS)
        rows = list(_questions(path, read_rows(path)))
        asked: Counter[str] = Counter()
        self._numbers: list[int] = []
        for row in rows:
            asked[_video_of(row)] += 1
            self._numbers.append(asked[_video_of(row)])
        return [Table(path, rows)]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        file = text_of(row, "video_path", "key", "video", "video_id")
        video = _stem(file)
        text, choices = _question(row)
        answer = index_of_letter(text_of(row, "answer").strip().strip("()."), choices)
        notes = option_notes(choices, answer)
        written = "\n".join([text, *lettered(choices, "({letter}) {text}")])
        if is_missing(row.get("options")) and written != text_of(row, "question"):
            notes.append("options are not written '(A) text'; the prompt has them in that form")
        types = _types(row)
        uid = row.get("uid")
        return Record(
            index=index,
            row=row,
            video_id=video,
            path=self._path(file, video),
            clip=None,
            question=Question(
                id=f"{video}-{self._numbers[index]}" if is_missing(uid) else str(uid),
                text=text,
                choices=choices,
                answer=answer,
                groups={
                    **({"type": types} if types else {}),
                    **({} if is_missing(row.get("type")) else {"category": str(row["type"])}),
                },
            ),
            notes=tuple(notes),
        )

    def _path(self, file: str, video: str) -> str:
        """Return where the video is, or where it should be put."""
        names = [file] if PurePosixPath(file).suffix.lower() in _SUFFIXES else []
        names += [f"{video}{suffix}" for suffix in _SUFFIXES]
        found = self.media.find(_FOLDERS, names)
        return found or self.media.at(
            next(filter(self.media.holds, _FOLDERS[1:]), "videos"), f"{video}.mp4"
        )


def _questions(path: Path, rows: Sequence[Row]) -> Iterator[Row]:
    """One row per question: the authors' table has one per video, with its questions in `qa`.

    Raises:
        ValueError: If `qa` holds something else.
    """
    for number, row in enumerate(rows, start=1):
        if "qa" not in row:
            yield row
            continue
        asked = row["qa"]
        if not isinstance(asked, list) or not all(isinstance(one, Mapping) for one in asked):
            raise ValueError(
                f"{path}, line {number}: qa must be a list of questions; download the file again"
            )
        for one in asked:
            yield {"key": row.get("key"), "type": row.get("type"), **one}


def _video_of(row: Row) -> str:
    """What a row calls its video, as text whatever it is."""
    names = ("video_path", "key", "video", "video_id")
    return next((str(row[name]) for name in names if not is_missing(row.get(name))), "")


def _stem(file: str) -> str:
    """A YouTube id may hold full stops of its own: only a suffix of a video is one."""
    path = PurePosixPath(file)
    return path.stem if path.suffix.lower() in _SUFFIXES else path.name


def _question(row: Row) -> tuple[str, tuple[str, ...]]:
    """Text and options, which are a list of their own or lines "(A) .." of the question."""
    text = text_of(row, "question")
    if not is_missing(row.get("options")) and row["options"] != []:
        return text, list_of(row, "options")
    parts = _OPTION.split(text)
    letters = "".join(parts[1::2])
    if len(letters) < 2 or letters != LETTERS[: len(letters)]:
        raise ValueError("the question has no lines '(A) ..' and there is no list of options")
    return parts[0], tuple(part.removesuffix("\n") for part in parts[2::2])


def _types(row: Row) -> str:
    """The types of a question, of which it has one or several; "" for none."""
    value = row.get("question_type")
    if is_missing(value):
        return ""
    return ", ".join(list_of(row, "question_type")) if not isinstance(value, str) else value
