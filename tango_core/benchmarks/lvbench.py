"""LVBench: 103 videos of more than an hour on average, 1,549 questions of six types.

Wang et al., "LVBench: An Extreme Long Video Understanding Benchmark", 2024,
https://arxiv.org/abs/2406.08035. Data: `zai-org/LVBench` on the Hugging Face hub, which holds no
videos, and `lmms-eval/LVBench` with them. Prompt and rules: lmms-eval, `lmms_eval/tasks/lvbench`.
VLMEvalKit has no LVBench: under its name the question is put in the same words, and there is no
harness's score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.protocols.harnesses import ranked_score
from tango_core.benchmarks.protocols.protocol import after_clip, in_versions
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import BRACKETED, lettered
from tango_core.benchmarks.tables import Row
from tango_core.errors import InputError
from tango_core.types import Prompt, Question


def render(question: Question) -> Prompt:
    """Question, options line by line, and the instruction, without a full stop behind it."""
    options = lettered(question.choices, BRACKETED)
    return after_clip(
        "\n".join([question.text, *options, "Answer the question with the option letter"])
    )


def sample_metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task, which is only whether the letter is right."""
    return {"lvbench_score": bool(ranked_score(reply, record.question))}


_META = "video_info.meta.jsonl"
_PARQUETS = ("data/train-*.parquet", "train-*.parquet", "*/train-*.parquet")
_LICENCE = "CC-BY-NC-SA 4.0, research only"
_PROTOCOLS = in_versions("lmms_eval", render, ranked_score)


class LVBenchBenchmark(AnnotatedBenchmark):
    """LVBench from the authors' `video_info.meta.jsonl` or the table that lmms-eval reads."""

    name = "lvbench"
    title = "LVBench"
    layout = f"{_META} or data/train-*.parquet, and videos/<key>.mp4"
    annotations = (
        *_PARQUETS,
        _META,
        f"data/{_META}",
        "lvbench.jsonl",
        "lvbench.json",
        *annotated.in_hub_cache("lmms-eval/LVBench", *_PARQUETS),
    )
    folders = (
        *("", "videos", "all_videos"),
        *("lvbench", "lvbench/videos", "lvbench/all_videos", "video"),
    )
    suffixes = annotated.VIDEO_SUFFIXES
    splits: ClassVar = {"test": 1549, "train": 1549}
    protocols: ClassVar = {
        **_PROTOCOLS,
        "vlmevalkit": replace(
            _PROTOCOLS["lmms_eval"], name="vlmevalkit", harness_score=None, failed_reply=""
        ),
    }
    several_valued: ClassVar = ("type",)
    lmms_eval_samples = annotated.LmmsEvalSamples("lvbench", sample_metrics)
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
        (table,) = super()._tables()
        rows = list(_questions(table))
        self._numbers = annotated.numbers_among(self._video_of(row) for row in rows)
        return [replace(table, rows=rows)]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        tables.text_of(row, *_VIDEO_COLUMNS)
        video = self._video_of(row)
        text, choices = _question(row)
        answer = annotated.index_of_letter(
            tables.text_of(row, "answer").strip().strip("()."), choices
        )
        notes = annotated.option_notes(choices, answer)
        if tables.is_missing(row.get("options")):
            written = tables.text_of(row, "question").removeprefix(f"{text}\n")
            notes += annotated.form_notes(choices, written, BRACKETED)
        types = row.get("question_type")
        if not tables.is_missing(types) and not isinstance(types, str):
            types = ", ".join(tables.list_of(row, "question_type"))
        groups = {"type": types, "category": row.get("type")}
        uid = row.get("uid")
        return Record(
            video_id=video,
            path=self._video_path(video),
            question=Question(
                id=f"{video}-{self._numbers[index]}" if tables.is_missing(uid) else str(uid),
                text=text,
                choices=choices,
                answer=answer,
                groups={
                    name: str(own) for name, own in groups.items() if not tables.is_missing(own)
                },
            ),
            notes=tuple(notes),
        )

    def _video_of(self, row: Row) -> str:
        """Id of a row's video, which may hold full stops of its own: only a suffix is none."""
        names = (row[name] for name in _VIDEO_COLUMNS if not tables.is_missing(row.get(name)))
        path = PurePosixPath(str(next(names, "")))
        return path.stem if path.suffix.lower() in self.suffixes else path.name


_VIDEO_COLUMNS = ("video_path", "key", "video", "video_id")


def _questions(table: Table) -> Iterator[Row]:
    """One row per question: the authors' table has one per video, with its questions in `qa`.

    Raises:
        ValueError: If `qa` holds something else.
    """
    for number, row in enumerate(table.rows, start=1):
        asked = row.get("qa", [row])
        if not isinstance(asked, list) or not all(isinstance(one, Mapping) for one in asked):
            raise InputError(
                f"{table.path}, line {number}: qa must be a list of questions; "
                "download the file again"
            )
        for one in asked:
            yield {"key": row.get("key"), "type": row.get("type"), **one} if "qa" in row else one


def _question(row: Row) -> tuple[str, tuple[str, ...]]:
    """Text and options, which are a list of their own or lines "(A) .." of the question."""
    text = tables.text_of(row, "question")
    if not tables.is_missing(row.get("options")) and row["options"] != []:
        return text, tables.list_of(row, "options")
    both = annotated.options_in(text)
    if both is None:
        raise InputError("the question has no lines '(A) ..' and there is no list of options")
    return both
