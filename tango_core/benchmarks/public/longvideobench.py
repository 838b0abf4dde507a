"""LongVideoBench, validation: questions that refer to a moment of a video of up to an hour.

Wu et al., "LongVideoBench: A Benchmark for Long-context Interleaved Video-Language Understanding",
2024, https://arxiv.org/abs/2407.15754. Data: `longvideobench/LongVideoBench` on the Hugging Face
hub. A model that reads videos is asked without subtitles in both harnesses, and so here; those that
VLMEvalKit shows lists of frames can be asked with. Prompts and rules: VLMEvalKit,
`vlmeval/dataset/longvideobench.py` and, for what its wrapper of InternVL makes of subtitles,
`vlmeval/vlm/internvl/utils.py`; lmms-eval, `lmms_eval/tasks/longvideobench`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.base import CrossTable, PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import LETTER_PLEASE, PromptTemplate, in_versions
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.judge import seconds_of
from tango_core.errors import InputError
from tango_core.types import Question, Subtitles

# https://github.com/open-compass/VLMEvalKit/issues/1563, fixed by pull request 1588 on 2026-06-28.
INVERTED = (
    "VLMEvalKit before 2026-06-28 (its change 1588) showed such a model LongVideoBench's subtitles "
    "exactly where they were not asked for: its older numbers without use_subtitle correspond to "
    "benchmark.subtitles: true here, those with it to false."
)
# Marks that stand together are deleted eight at a time, those of the first 64 frames.
_MARKED_FRAMES, _TOGETHER = 64, 8
# A shorter cue belongs to the frames within half of this around its middle.
_SHORTEST_S = 1.0
_IMAGE = re.compile(r"Image-(?=[1-9])")


# Behind the frames the subtitles, for models that read lists of images.
VLMEVALKIT = PromptTemplate(
    f"{{subtitles}}{{question}}\n{{options}}\n{LETTER_PLEASE}", subtitles="{lines}"
)
LMMS_EVAL = PromptTemplate(f"{{question}}\n{{options}}\n{LETTER_PLEASE}\n")


def lmms_eval_letter(reply: str) -> str:
    """Return the first capital from A to E after known phrases are deleted, or ""."""
    return harnesses.first_capital(
        reply, "ABCDE", (*harnesses.OPTION_PHRASES, "Best answer:", "Best option:")
    )


def score_lmms_eval(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known.

    A reply without one is answered at random there, from an unseeded generator; the score is then
    what that is worth on average, one over the number of options.
    """
    return harnesses.guess_score(lmms_eval_letter(reply), question)


def sample_metrics(record: annotated.Record, reply: str) -> dict[str, Any]:
    """The metric of lmms-eval's task; where it would guess, the letter is empty."""
    question = record.question
    return {
        "lvb_acc": {
            "id": question.id,
            "duration_group": int(question.groups["duration"]),
            "question_category": question.groups["category"],
            "answer": annotated.right_letter(record),
            "parsed_pred": lmms_eval_letter(reply),
        },
        "submission": {question.id: reply},
    }


def columns(record: annotated.Record) -> dict[str, Any]:
    """Columns of `LongVideoBench.tsv`: those of `lvb_val.json`, and three more."""
    options = {f"option{number}" for number in range(5)}
    return {
        **{k: v for k, v in record.row.items() if k not in options},
        "candidates": str(list(record.question.choices)),
        "correct_choice": record.question.answer,
        "duration_group": int(record.question.groups["duration"]),
        "index": record.index,
        "video": record.row.get("video_id", record.video_id),
        "video_path": f"./videos/{Path(record.path).name}",
    }


def packed(text: str, begins_s: float, length_s: float) -> Subtitles:
    """Convert the subtitles of a video to the video's own seconds.

    A cue is `{"timestamp": [start, end], "text"}`, whose end counts only if it has a fraction (else
    it is the length of the video, as in VLMEvalKit), or `{"start": "h:m:s", "end", "line"}`.

    Args:
        text: Content of the file.
        begins_s: When the video begins on the clock of its subtitles.
        length_s: Length of the video.

    Returns:
        JSON: a list of [start, end, text]. No subtitles if the file is damaged: VLMEvalKit ends
        there, here the question is rendered without.
    """
    cues = []
    try:
        for entry in json.loads(text):
            if "timestamp" in entry:
                start, end = entry["timestamp"]
                end = end if isinstance(end, float) else length_s
                cues.append((float(start) - begins_s, end - begins_s, str(entry["text"])))
            else:
                start, end = (seconds_of(entry[name]) - begins_s for name in ("start", "end"))
                cues.append((start, end, str(entry["line"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Subtitles(None)
    return Subtitles(json.dumps(cues))


def between_frames(subtitles: Subtitles, watched: Watched) -> str:
    """Write the cues in order, with marks of the frames between them: `<Frame-1>hello`, by line.

    VLMEvalKit writes them between the frames; its wrapper of InternVL puts all frames in front and
    leaves a mark at the position of each, so that the text still shows what is spoken when. A frame
    comes before the first cue whose middle is not before it. A cue without a frame is left out.
    Eight marks without a cue between them are left out as well, counted from the first frame, and
    all of them where no cue is shown.
    """
    cues: list[tuple[float, float, str]] = json.loads(subtitles.text or "[]")
    times = watched.times or _evenly(watched, cues)
    text, shown = "", 0
    for start, end, spoken in cues:
        middle = (start + end) / 2
        while shown < len(times) and times[shown] <= middle:
            shown += 1
            text += _marks(shown, shown)
        if end - start < _SHORTEST_S:
            start, end = middle - _SHORTEST_S / 2, middle + _SHORTEST_S / 2
        if any(start < time < end for time in times):
            text += f"{spoken}\n"
    text += _marks(shown + 1, len(times))
    text = text.replace(_marks(1, len(times)), "")
    for first in range(1, _MARKED_FRAMES, _TOGETHER):
        text = text.replace(_marks(first, first + _TOGETHER - 1), "")
    # VLMEvalKit's marks are "Image-1" up to here; it replaces the word in the cues, too.
    return _IMAGE.sub("Frame-", text)


def _marks(first: int, last: int) -> str:
    """Marks of some frames, counted from 1."""
    return "".join(f"<Frame-{number}>" for number in range(first, last + 1))


def _evenly(watched: Watched, cues: Sequence[tuple[float, float, str]]) -> Sequence[float]:
    """Approximate times of the frames of a video that was not opened."""
    length_s = watched.duration_s or max((end for _, end, _ in cues), default=0.0)
    step = length_s / (watched.num_frames + 1)
    return [number * step for number in range(1, watched.num_frames + 1)]


class LongVideoBenchBenchmark(annotated.AnnotatedBenchmark):
    """LongVideoBench from `lvb_val.json`, VLMEvalKit's TSV, or the Parquet file lmms-eval reads.

    The split `"val"`, also under the recipe's default name `"test"`, is the one with answers;
    `"test_wo_gt"` is the hidden test set, whose replies are recorded and not scored.
    """

    name = "longvideobench"
    title = "LongVideoBench"
    layout = "lvb_val.json or validation-00000-of-00001.parquet, and videos/<video_path>"
    annotations = (
        *("lvb_val.json", "LongVideoBench.tsv", "lvb_val.jsonl"),
        "validation-00000-of-00001.parquet",
    )
    split_annotations: ClassVar = {
        "test_wo_gt": ("lvb_test_wo_gt.json", "test-00000-of-00001.parquet")
    }
    hidden_splits = ("test_wo_gt",)
    video_columns = ("video_path",)
    id_column = "id"
    option_columns = ("candidates", "option{}")
    answer_column = "correct_choice"
    answer_form = "index"
    length_column = "duration"  # duration_group only names a class
    splits: ClassVar = {"test": 1337, "val": 1337, "test_wo_gt": 5341}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            VLMEVALKIT,
            partial(harnesses.letter_score, partial(harnesses.first_capital, letters="ABCDE")),
            subtitles=SubtitleRule(between_frames, VLMEVALKIT, ("internvl",), INVERTED),
        ),
        **in_versions("lmms_eval", LMMS_EVAL, score_lmms_eval, max_new_tokens=32),
    }
    paper_column = PaperColumn(3)
    cross_table = CrossTable("duration", ("category",))
    vlmevalkit_table = annotated.VLMEvalKitTable("LongVideoBench", columns)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "longvideobench_val_v",
        sample_metrics,
        target=lambda record: (
            annotated.written_answer(record)
            if record.question.answer is None
            else str(record.question.answer)
        ),
        key_in=annotated.fields_of_metric("lvb_acc", "id"),
    )
    releases = (
        Release(
            repository="longvideobench/LongVideoBench",
            licence="CC-BY-NC-SA 4.0",
            annotations=("lvb_val.json", "lvb_test_wo_gt.json"),
            videos=("videos.tar.part.*",),
            subtitles=("subtitles.tar",),
            gated="who accepts its terms on the hub",
        ),
    )

    def _file(self, row: tables.Row) -> str:
        return super()._file(row).removeprefix("./").removeprefix("videos/")

    def _groups(self, row: tables.Row) -> dict[str, str]:
        return {
            "duration": str(int(tables.number_of(row, "duration_group"))),
            "category": tables.text_of(row, "question_category"),
        }

    def _subtitle_file(self, record: annotated.Record) -> str | None:
        name = record.row.get("subtitle_path")
        return None if tables.is_missing(name) else str(name)

    def _subtitles_of(self, record: annotated.Record) -> Subtitles:
        """Read the subtitles; the row states when the video begins in them.

        Raises:
            ValueError: If the row states no such times.
        """
        read = super()._subtitles_of(record)
        if read.text is None:
            return read
        try:
            begins_s = tables.number_of(record.row, "starting_timestamp_for_subtitles")
            length_s = tables.number_of(record.row, "duration")
        except ValueError as error:
            raise InputError(f"question {record.question.id}: {error}") from error
        return packed(read.text, begins_s, length_s)
