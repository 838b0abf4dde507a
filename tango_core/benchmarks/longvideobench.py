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
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.base import CrossTable, PaperColumn
from tango_core.benchmarks.protocols.harnesses import OPTION_PHRASES, first_capital, letter_score
from tango_core.benchmarks.protocols.protocol import after_clip, in_versions, render_prompt
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.tables import Row
from tango_core.errors import InputError
from tango_core.local_files import read_text
from tango_core.types import Prompt, Question, Subtitles

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

_Cue = tuple[float, float, str]


def render_subtitled(question: Question, lines: str) -> Prompt:
    """VLMEvalKit: behind the frames their subtitles, for models that read lists of images."""
    return after_clip(lines + render_prompt(question).after)


def render_lmms_eval(question: Question) -> Prompt:
    """Task `longvideobench_val_v`, with a line break at the end."""
    return after_clip(f"{render_prompt(question).after}\n")


def lmms_eval_letter(reply: str) -> str:
    """Return the first capital from A to E after known phrases are deleted, or ""."""
    return first_capital(reply, "ABCDE", (*OPTION_PHRASES, "Best answer:", "Best option:"))


def score_lmms_eval(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known.

    A reply without one is answered at random there, from an unseeded generator; the score is then
    what that is worth on average, one over the number of options.
    """
    if question.answer is not None and not lmms_eval_letter(reply):
        return 1.0 / len(question.choices)
    return letter_score(lmms_eval_letter, reply, question)


def sample_metrics(record: Record, reply: str) -> dict[str, Any]:
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


def columns(record: Record) -> dict[str, Any]:
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
    """What a question's row and the file of its video say together, in the video's own seconds.

    A cue is `{"timestamp": [start, end], "text"}`, whose end counts only if it has a fraction (else
    it is the length of the video, as there), or `{"start": "h:m:s", "end", "line"}`.

    Args:
        text: Content of the file.
        begins_s: When the video begins on the clock of its subtitles.
        length_s: Of the video.

    Returns:
        JSON: a list of [start, end, words]. Without text if the file is damaged: VLMEvalKit ends
        there, here the question is put without.
    """
    try:
        cues = [_cue(entry, length_s) for entry in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Subtitles(None)
    moved = [(start - begins_s, end - begins_s, words) for start, end, words in cues]
    return Subtitles(json.dumps(moved))


def _cue(entry: Any, length_s: float) -> _Cue:
    """Start, end and words of one entry of the file."""
    if "timestamp" in entry:
        start, end = entry["timestamp"]
        return float(start), end if isinstance(end, float) else length_s, str(entry["text"])
    start, end = (_seconds(entry[name]) for name in ("start", "end"))
    return start, end, str(entry["line"])


def _seconds(clock: str) -> float:
    hours, minutes, seconds = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def between_frames(subtitles: Subtitles, watched: Watched) -> str:
    """The cues in order, with the marks of the frames between them: `<Frame-1>hello`, a line each.

    VLMEvalKit writes them between the frames; its wrapper of InternVL puts all frames in front and
    leaves a mark where each one was, so that the words still say what is spoken when. A frame
    stands before the first cue whose middle it does not come after. A cue that no frame falls into
    is left out. Eight marks without a cue between them are left out as well, counted from the first
    frame, and so are all of them where no cue is shown.
    """
    cues: list[_Cue] = json.loads(subtitles.text or "[]")
    times = watched.times or _evenly(watched, cues)
    text, shown = "", 0
    for start, end, words in cues:
        middle = (start + end) / 2
        while shown < len(times) and times[shown] <= middle:
            shown += 1
            text += _marks(shown, shown)
        if end - start < _SHORTEST_S:
            start, end = middle - _SHORTEST_S / 2, middle + _SHORTEST_S / 2
        if any(start < time < end for time in times):
            text += f"{words}\n"
    text += _marks(shown + 1, len(times))
    text = text.replace(_marks(1, len(times)), "")
    for first in range(1, _MARKED_FRAMES, _TOGETHER):
        text = text.replace(_marks(first, first + _TOGETHER - 1), "")
    # There the marks say "Image" until here, and the words change with them.
    return _IMAGE.sub("Frame-", text)


def _marks(first: int, last: int) -> str:
    """What stands in the text for some frames, counted from 1."""
    return "".join(f"<Frame-{number}>" for number in range(first, last + 1))


def _evenly(watched: Watched, cues: Sequence[_Cue]) -> Sequence[float]:
    """About when its frames are shown, of a video that was not opened."""
    length_s = watched.duration_s or max((end for _, end, _ in cues), default=0.0)
    step = length_s / (watched.num_frames + 1)
    return [number * step for number in range(1, watched.num_frames + 1)]


_VALIDATION = (
    "lvb_val.json",
    "LongVideoBench.tsv",
    "lvb_val.jsonl",
    "validation-00000-of-00001.parquet",
)
_HIDDEN = ("lvb_test_wo_gt.json", "test-00000-of-00001.parquet")


class LongVideoBenchBenchmark(AnnotatedBenchmark):
    """LongVideoBench from `lvb_val.json`, VLMEvalKit's TSV, or the Parquet file lmms-eval reads.

    The split `"val"`, also under the recipe's default name `"test"`, is the one with answers;
    `"test_wo_gt"` is the hidden test set, whose replies are recorded and not scored.
    """

    name = "longvideobench"
    title = "LongVideoBench"
    layout = "lvb_val.json or validation-00000-of-00001.parquet, and videos/<video_path>"
    folders = ("videos", "longvideobench/videos", "datasets/longvideobench/videos", "video", ".")
    subtitle_folders = (
        *("subtitles", "longvideobench/subtitles"),
        "datasets/longvideobench/subtitles",
    )
    splits: ClassVar = {"test": 1337, "val": 1337, "test_wo_gt": 5341}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            render_prompt,
            partial(letter_score, partial(first_capital, letters="ABCDE")),
            subtitles=SubtitleRule(between_frames, render_subtitled, ("internvl",), INVERTED),
        ),
        **in_versions("lmms_eval", render_lmms_eval, score_lmms_eval, max_new_tokens=32),
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
        names = _HIDDEN if self.split == "test_wo_gt" else _VALIDATION
        in_cache = annotated.in_hub_cache("longvideobench/LongVideoBench", *names)
        path = self._find_annotations([*names, *in_cache])
        return [Table(path, tables.read_rows(path))]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        file = tables.text_of(row, "video_path").removeprefix("./").removeprefix("videos/")
        choices = _choices(row)
        answer = None
        if self.split != "test_wo_gt" or not tables.is_missing(row.get("correct_choice")):
            answer = int(tables.number_of(row, "correct_choice"))
            if not 0 <= answer < len(choices):
                raise InputError(f"correct_choice {answer} is none of the {len(choices)} options")
        return Record(
            video_id=file.rpartition(".")[0] or file,
            path=self._video_path(file),
            question=Question(
                id=tables.text_of(row, "id"),
                text=tables.text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups={
                    "duration": str(int(tables.number_of(row, "duration_group"))),
                    "category": tables.text_of(row, "question_category"),
                },
            ),
            notes=() if answer is None else tuple(annotated.option_notes(choices, answer)),
            length_s=tables.length_of(row, "duration"),  # duration_group only names a class
        )

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.json` file of a question's video is; `None` for a video without."""
        name = record.row.get("subtitle_path")
        return (
            None if tables.is_missing(name) else self.media.find(self.subtitle_folders, [str(name)])
        )

    def _subtitles_of(self, record: Record) -> Subtitles:
        """Read them, and say where the video begins in them, which is the same for its questions.

        Raises:
            ValueError: If the row states no such times.
        """
        path = self.subtitle_path(record)
        if path is None:
            return Subtitles(None)
        try:
            begins_s = tables.number_of(record.row, "starting_timestamp_for_subtitles")
            length_s = tables.number_of(record.row, "duration")
        except ValueError as error:
            raise InputError(f"question {record.question.id}: {error}") from error
        return packed(read_text(Path(path), errors="replace"), begins_s, length_s)


def _choices(row: Row) -> tuple[str, ...]:
    """Read options: a list in JSON and TSV; `option0` to `option4`, ended by "N/A", in Parquet."""
    if not tables.is_missing(row.get("candidates")):
        return tables.list_of(row, "candidates")
    options: list[str] = []
    for number in range(5):
        value = row.get(f"option{number}")
        if tables.is_missing(value) or value == "N/A":
            break
        options.append(str(value))
    if not options:
        raise InputError("no candidates and no option0")
    return tuple(options)
