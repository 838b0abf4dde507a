"""LongVideoBench, validation: questions that refer to a moment of a video of up to an hour.

Wu et al., "LongVideoBench: A Benchmark for Long-context Interleaved Video-Language Understanding",
2024, https://arxiv.org/abs/2407.15754. Data: `longvideobench/LongVideoBench` on the Hugging Face
hub. A model that reads videos is asked without subtitles in both harnesses, and so here; those that
VLMEvalKit shows lists of frames can be asked with.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tango_core.benchmarks.annotations.benchmark import AnnotatedBenchmark
from tango_core.benchmarks.annotations.records import (
    Record,
    Table,
    option_notes,
)
from tango_core.benchmarks.annotations.tables import (
    Row,
    is_missing,
    length_of,
    list_of,
    number_of,
    read_rows,
    text_of,
)
from tango_core.benchmarks.facts import CrossTable, PaperColumn
from tango_core.benchmarks.longvideobench import lmms_eval, vlmevalkit
from tango_core.benchmarks.longvideobench.subtitles import packed
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.local_files import read_text
from tango_core.types import Question, Subtitles

_HUB = "hub/datasets--longvideobench--LongVideoBench/snapshots/*"
_VALIDATION = (
    "lvb_val.json",
    "LongVideoBench.tsv",
    "lvb_val.jsonl",
    "validation-00000-of-00001.parquet",
)
_HIDDEN = ("lvb_test_wo_gt.json", "test-00000-of-00001.parquet")
_ANNOTATIONS = {
    # The recipe's default split is the one whose answers are public.
    "test": (*_VALIDATION, *(f"{up}{_HUB}/{name}" for up in ("", "../") for name in _VALIDATION)),
    "test_wo_gt": (*_HIDDEN, *(f"{up}{_HUB}/{name}" for up in ("", "../") for name in _HIDDEN)),
}
_FOLDERS = ("videos", "longvideobench/videos", "datasets/longvideobench/videos", "video", ".")
_SUBTITLES = ("subtitles", "longvideobench/subtitles", "datasets/longvideobench/subtitles")


class LongVideoBenchBenchmark(AnnotatedBenchmark):
    """LongVideoBench from `lvb_val.json`, VLMEvalKit's TSV, or the Parquet file lmms-eval reads.

    The split `"val"`, also under the recipe's default name `"test"`, is the one with answers;
    `"test_wo_gt"` is the hidden test set, whose replies are recorded and not scored.
    """

    name = "longvideobench"
    title = "LongVideoBench"
    layout = "lvb_val.json or validation-00000-of-00001.parquet, and videos/<video_path>"
    splits: ClassVar = {"test": 1337, "val": 1337, "test_wo_gt": 5341}
    protocols: ClassVar = {**vlmevalkit.PROTOCOLS, **lmms_eval.PROTOCOLS}
    paper_column = PaperColumn(3)
    cross_table = CrossTable("duration", ("category",))
    vlmevalkit_table = vlmevalkit.TABLE
    lmms_eval_samples = lmms_eval.SAMPLES
    releases = (
        Release(
            "longvideobench/LongVideoBench",
            (
                ReleasePart("annotations", ("lvb_val.json", "lvb_test_wo_gt.json")),
                ReleasePart("videos", ("videos.tar.part.*",)),
                ReleasePart("subtitles", ("subtitles.tar",), needed=False),
            ),
            "CC-BY-NC-SA 4.0",
            gated="who accepts its terms on the hub",
        ),
    )

    def _tables(self) -> list[Table]:
        patterns = _ANNOTATIONS["test" if self.split == "val" else self.split]
        path = self._find_annotations(patterns)
        return [Table(path, read_rows(path))]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        file = text_of(row, "video_path").removeprefix("./").removeprefix("videos/")
        choices = _choices(row)
        answer = None
        if self.split != "test_wo_gt" or not is_missing(row.get("correct_choice")):
            answer = int(number_of(row, "correct_choice"))
            if not 0 <= answer < len(choices):
                raise ValueError(f"correct_choice {answer} is none of the {len(choices)} options")
        return Record(
            index=index,
            row=row,
            video_id=file.rpartition(".")[0] or file,
            path=self.media.find(_FOLDERS, [file]) or self.media.at("videos", file),
            clip=None,
            question=Question(
                id=text_of(row, "id"),
                text=text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups={
                    "duration": str(int(number_of(row, "duration_group"))),
                    "category": text_of(row, "question_category"),
                },
            ),
            notes=() if answer is None else tuple(option_notes(choices, answer)),
            length_s=length_of(row, "duration"),  # duration_group only names a class
        )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.json` file of a question's video is; `None` for a video without."""
        name = record.row.get("subtitle_path")
        return None if is_missing(name) else self.media.find(_SUBTITLES, [str(name)])

    def _subtitles_of(self, record: Record) -> Subtitles:
        """Read them, and say where the video begins in them, which is the same for its questions.

        Raises:
            ValueError: If the row states no such times.
        """
        path = self.subtitle_path(record)
        if path is None:
            return Subtitles(None)
        try:
            begins_s, length_s = (
                number_of(record.row, name)
                for name in ("starting_timestamp_for_subtitles", "duration")
            )
        except ValueError as error:
            raise ValueError(f"question {record.question.id}: {error}") from error
        return packed(read_text(Path(path), errors="replace"), begins_s, length_s)


def _choices(row: Row) -> tuple[str, ...]:
    """Read options: a list in JSON and TSV; `option0` to `option4`, ended by "N/A", in Parquet."""
    if not is_missing(row.get("candidates")):
        return list_of(row, "candidates")
    options: list[str] = []
    for number in range(5):
        value = row.get(f"option{number}")
        if is_missing(value) or value == "N/A":
            break
        options.append(str(value))
    if not options:
        raise ValueError("no candidates and no option0")
    return tuple(options)
