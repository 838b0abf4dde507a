"""Video-MME: 900 videos in three lengths, three questions each.

Fu et al., "Video-MME: The First-Ever Comprehensive Evaluation Benchmark of Multi-modal LLMs in
Video Analysis", 2024, https://arxiv.org/abs/2405.21075. Data: `lmms-lab/Video-MME` on the Hugging
Face hub. The published comparisons of pruning methods are without subtitles.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import (
    Record,
    Table,
    index_of_letter,
    option_notes,
)
from tango_core.benchmarks.annotations.tables import Row, is_missing, list_of, read_rows, text_of
from tango_core.benchmarks.facts import CrossTable, PaperColumn
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.benchmarks.videomme import lmms_eval, vlmevalkit
from tango_core.types import Question

GROUPS = ("duration", "domain", "sub_category", "task_type")

_PARQUET = "videomme/test-00000-of-00001.parquet"
_HUB = "hub/datasets--lmms-lab--Video-MME/snapshots/*"
_ANNOTATIONS = (
    _PARQUET,
    "test-00000-of-00001.parquet",
    "Video-MME.tsv",
    "videomme.json",
    "videomme.jsonl",
    f"{_HUB}/{_PARQUET}",
    f"../{_HUB}/{_PARQUET}",
)
# The release and VLMEvalKit; lmms-eval below HF_HOME/videomme and below HF_HOME.
_FOLDERS = ("video", "data", "videos", "videomme/data", ".")
_SUBTITLES = ("subtitle", "subtitles", "videomme/subtitle", "../subtitle")
_SUFFIXES = (".mp4", ".MP4", ".mkv", ".webm")
_PARTS = (
    ReleasePart("annotations", ("videomme/test-*.parquet",)),
    ReleasePart("videos", ("videos_chunked_*.zip",)),
    ReleasePart("subtitles", ("subtitle.zip",), needed=False),
)
_LICENCE = "academic research only, by the terms of Video-MME"


class VideoMMEBenchmark(AnnotatedBenchmark):
    """Video-MME in the layout of the release, of VLMEvalKit (`Video-MME.tsv`) or of lmms-eval."""

    name = "videomme"
    title = "Video-MME"
    layout = f"{_PARQUET} or Video-MME.tsv, and video/<videoID>.mp4 or data/<videoID>.mp4"
    splits: ClassVar = {"test": 2700}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    paper_column = PaperColumn(1, "duration", ("short", "medium", "long"))
    cross_table = CrossTable("duration", ("domain", "sub_category", "task_type"))
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    releases = (
        Release("lmms-lab/Video-MME", _PARTS, _LICENCE),
        Release("lmms-eval/Video-MME", _PARTS, _LICENCE),
    )

    def _tables(self) -> list[Table]:
        path = self._find_annotations(_ANNOTATIONS)
        table = Table(path, read_rows(path))
        asked: Counter[Any] = Counter()
        self._numbers: list[int] = []
        for row in table.rows:
            video = row.get("videoID") or row.get("video")
            asked[video] += 1
            self._numbers.append(asked[video])
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        # VLMEvalKit's table calls the YouTube id `video` and has no question ids.
        video = text_of(row, "videoID", "video")
        column = "options" if "options" in row else "candidates"
        written = list_of(row, column)
        choices = tuple(
            re.sub(rf"^\(?{letter}[.):]\)?\s*", "", option)
            for letter, option in zip(LETTERS, written, strict=False)
        )
        answer = index_of_letter(text_of(row, "answer").strip(), choices)
        notes = option_notes(choices, answer)
        if any(
            option != f"{letter}. {text}"
            for letter, text, option in zip(LETTERS, choices, written, strict=False)
        ):
            notes.append("options are not written 'A. text'; the prompt has them in that form")
        return Record(
            index=index,
            row=row,
            video_id=video,
            path=self._path(video),
            clip=None,
            question=Question(
                id=(
                    f"{video}-{self._numbers[index]}"
                    if is_missing(row.get("question_id"))
                    else str(row["question_id"])
                ),
                text=text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups={name: text_of(row, name) for name in GROUPS},
            ),
            notes=tuple(notes),
        )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.srt` file of a question's video is; `None` for a video without."""
        return self.media.find(_SUBTITLES, [f"{record.video_id}.srt"])

    def _path(self, video: str) -> str:
        """Return where the video is, or where the release would put it."""
        found = self.media.find(_FOLDERS, [video + suffix for suffix in _SUFFIXES])
        return found or self.media.at(
            next(filter(self.media.holds, _FOLDERS[:-1]), "video"), f"{video}.mp4"
        )
