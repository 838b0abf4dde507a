"""Video-MME-v2: 800 videos, four questions each with eight options, which have one score together.

MME-Benchmarks/Video-MME-v2 on GitHub (b24176a1) and on the Hugging Face hub. The headline is the
group score (`tango_core.metrics.metric`); plain accuracy stands beside it.
"""

from __future__ import annotations

import re
from typing import ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import Record, Table, index_of_letter, option_notes
from tango_core.benchmarks.annotations.tables import Row, is_missing, read_rows, text_of
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered
from tango_core.benchmarks.videomme_v2 import lmms_eval, vlmevalkit
from tango_core.benchmarks.videomme_v2.groups import Groups
from tango_core.metrics import ACCURACY, GROUP_SCORE
from tango_core.metrics.metric import POSITION
from tango_core.types import Question

_HUB = "hub/datasets--MME-Benchmarks--Video-MME-v2/snapshots/*"
_ANNOTATIONS = (
    "test.parquet",
    "Video-MME-v2.tsv",
    "videomme_v2.json",
    "videomme_v2.jsonl",
    f"{_HUB}/test.parquet",
    f"../{_HUB}/test.parquet",
)
# The release and VLMEvalKit; lmms-eval below HF_HOME/videomme_v2 and below HF_HOME.
_FOLDERS = ("video", "videos", "data", "videomme_v2/data", "videomme_v2", ".")
_SUBTITLES = tuple(
    f"{start}{name}" for start in ("", "videomme_v2/") for name in ("subtitle", "subtitle/subtitle")
)
_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm")
_OPTION = re.compile(r"^\(?([A-Z])[.):]\)?\s*", re.MULTILINE)


class VideoMMEV2Benchmark(AnnotatedBenchmark):
    """Video-MME-v2 in the layout of the release, of VLMEvalKit or of lmms-eval."""

    name = "videomme_v2"
    title = "Video-MME-v2"
    layout = "test.parquet or Video-MME-v2.tsv, and video/<id>.mp4 with ids 001 to 800"
    splits: ClassVar = {"test": 3200}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    metrics = (GROUP_SCORE, ACCURACY)
    unlisted_groups = (POSITION,)
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    # Archives are unpacked into the root, as lmms-eval does.
    releases = (
        Release(
            "MME-Benchmarks/Video-MME-v2",
            (
                ReleasePart("annotations", ("test.parquet",)),
                ReleasePart("videos", ("videos/*.zip",), into=""),
                ReleasePart(
                    "subtitles",
                    ("subtitle/*.jsonl", "*subtitle*.zip"),
                    any_of=True,
                    needed=False,
                    into="",
                ),
            ),
            "research only, by the terms of Video-MME-v2",
        ),
    )

    def _tables(self) -> list[Table]:
        path = self._find_annotations(_ANNOTATIONS)
        table = Table(path, read_rows(path))
        self._videos = [_video_of(row) for row in table.rows]
        self._groups = Groups(table.rows, self._videos)
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        text_of(row, "video_id", "video")
        video = self._videos[index]
        written = text_of(row, "options")
        choices = _options(written)
        answer = index_of_letter(text_of(row, "answer").strip(), choices)
        groups = self._groups.of(index)
        notes = [*option_notes(choices, answer), *self._groups.notes(index)]
        if "\n".join(lettered(choices)) != written:
            notes.append("options are not written 'A. text'; the prompt has them in that form")
        return Record(
            index=index,
            row=row,
            video_id=video,
            path=self._path(video),
            clip=None,
            question=Question(
                id=(
                    f"{video}-{groups[POSITION]}"
                    if is_missing(row.get("question_id"))
                    else str(row["question_id"])
                ),
                text=text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups=groups,
            ),
            notes=tuple(notes),
        )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.jsonl` file of a question's video is; `None` for a video without."""
        return self.media.find(_SUBTITLES, [f"{record.video_id}.jsonl"])

    def _path(self, video: str) -> str:
        """Return where the video is, or where the release would put it."""
        found = self.media.find(_FOLDERS, [video + suffix for suffix in _SUFFIXES])
        return found or self.media.at(
            next(filter(self.media.holds, _FOLDERS[:-2]), "video"), f"{video}.mp4"
        )


def _video_of(row: Row) -> str:
    """Id of a row's video; a table read as numbers has lost the zeros in front; "" for none."""
    value = next((row[k] for k in ("video_id", "video") if not is_missing(row.get(k))), "")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.zfill(3) if text.isdecimal() else text


def _options(written: str) -> tuple[str, ...]:
    """The options of one text in which each begins a line with its letter.

    Raises:
        ValueError: If the letters are not A, B, C and so on.
    """
    marks: list[re.Match[str]] = []
    for mark in _OPTION.finditer(written):
        # A line inside an option may begin like one: only the next letter is one.
        if len(marks) < len(LETTERS) and mark[1] == LETTERS[len(marks)]:
            marks.append(mark)
    if len(marks) < 2 or written[: marks[0].start()].strip():
        raise ValueError(f"options must be lines 'A. text', 'B. text' ..., got {written[:60]!r}")
    ends = [*(mark.start() for mark in marks[1:]), len(written)]
    return tuple(
        written[mark.end() : end].removesuffix("\n").removesuffix("\r")
        for mark, end in zip(marks, ends, strict=True)
    )
