"""Video-MME-v2: 800 videos, four questions each with eight options, which have one score together.

MME-Benchmarks/Video-MME-v2 on GitHub (b24176a1) and on the Hugging Face hub. The headline is the
group score (`tango_core.metrics.metric`); plain accuracy stands beside it. Prompts and rules:
VLMEvalKit, `vlmeval/dataset/videomme_v2.py`; lmms-eval, `lmms_eval/tasks/videomme_v2`. VLMEvalKit
shows models that read a file, such as Qwen's, 64 frames of 448 x 448 pixels in the clip's shape:
`model: {num_frames: 64, frame_area: 200704}` does so here.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import partial
from typing import Any, ClassVar

from tango_core.benchmarks import annotated
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import after_clip, in_versions
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.benchmarks.releases import Release, ReleasePart
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, letter_of, lettered
from tango_core.benchmarks.tables import Row, is_missing, text_of
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, GROUP_SCORE
from tango_core.metrics.metric import (
    GROUP_SIZE,
    LOGIC,
    POSITION,
    RELEVANCE,
    STRUCTURE,
    STRUCTURES,
    TYPE,
    structure_of,
)
from tango_core.types import Prompt, Question, Subtitles

# No line break follows it there.
_FRAMES = "These are the frames of a video."
LETTER_ONLY = (
    "Select the best answer to the following multiple-choice question based on the video. Respond "
    "with only the letter (A, B, C, D, E, F, G, or H) of the correct option."
)
# The quotation mark is not closed in the original either.
REASON_FIRST = (
    "Please perform a detailed reasoning based on the provided video frames to answer the "
    "following multiple-choice question selecting the best option from A through H and providing "
    "your final response strictly in the format: 'Final Answer: <letter>."
)
QWEN3_VL = "Answer with the option letter only."
_DELETED = (
    *(*harnesses.OPTION_PHRASES, "Final Answer:", "Best answer:"),
    *("Best option:", "Answer:", "Option:"),
)
# Columns that the release fills in a group's last row.
HEADS = ("level", "second_head", "third_head")


def asked(question: Question, instruction: str) -> str:
    """Question, options and the instruction, which stands last here."""
    return "\n".join([f"Question: {question.text}", *lettered(question.choices), instruction])


def render_vlmevalkit(question: Question, instruction: str = LETTER_ONLY) -> Prompt:
    """VLMEvalKit: the clip, then everything else, without subtitles."""
    return after_clip(_FRAMES + asked(question, instruction))


def render_vlmevalkit_subtitled(
    question: Question, words: str, instruction: str = LETTER_ONLY
) -> Prompt:
    """VLMEvalKit: the clip, all words that are spoken, then everything else."""
    listed = f"{_FRAMES} This video's subtitles are listed below:\n{words}\n"
    return after_clip(listed + asked(question, instruction))


def render_lmms_eval(question: Question, instruction: str = LETTER_ONLY) -> Prompt:
    """lmms-eval: question, options and instruction."""
    return after_clip(asked(question, instruction))


def render_lmms_eval_subtitled(
    question: Question, words: str, instruction: str = LETTER_ONLY
) -> Prompt:
    """Task `videomme_v2_w_subtitle`; without any words the prompt is as it was."""
    listed = f"This video's subtitles are listed below:\n{words}\n\n" if words else ""
    return after_clip(listed + asked(question, instruction))


def all_words(subtitles: Subtitles, _: Watched) -> str:
    """All words with a space between them, whatever frames are shown; "" for a damaged file.

    A file has one word per line of JSON. lmms-eval shows no subtitles of a damaged one either;
    VLMEvalKit ends there.
    """
    lines = (line for line in (subtitles.text or "").split("\n") if line.strip())
    try:
        return " ".join(str(json.loads(line)["text"]) for line in lines)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def harness_letter(reply: str) -> str:
    """The first capital from A to H after known phrases are deleted, or "", in both harnesses.

    "He holds a book" is H, and "Based on the video C" is B.
    """
    return harnesses.first_capital(reply, "ABCDEFGH", _DELETED)


def stated(row: Row, name: str) -> str | None:
    """Return a column of a row as it is written; `None` if it is empty."""
    return None if is_missing(row.get(name)) else str(row[name])


def sample_metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of a question in lmms-eval; groups are made of them later."""
    letter, right = harness_letter(reply), annotated.right_letter(record)
    return {
        "videomme_v2_score": {
            "video_id": record.video_id,
            "question_id": record.question.id,
            "group_type": record.question.groups["group_type"],
            "group_structure": stated(record.row, "group_structure"),
            **{name: stated(record.row, name) for name in HEADS},
            "pred_answer": letter,
            "answer": right,
            "score": int(letter == right),
        }
    }


def columns(record: Record) -> dict[str, Any]:
    """Columns of `Video-MME-v2.tsv`."""
    question, video = record.question, record.video_id
    assert question.answer is not None
    return {
        "index": record.index,
        "video": video,
        "video_path": f"./video/{video}.mp4",
        "subtitle_path": f"./subtitle/{video}.jsonl",
        "url": stated(record.row, "url"),
        "group_type": question.groups["group_type"],
        "group_structure": stated(record.row, "group_structure"),
        "question_id": question.id,
        "question": question.text,
        "options": "\n".join(lettered(question.choices)),
        "answer": letter_of(question.answer),
        **{name: stated(record.row, name) for name in HEADS},
    }


_listed = partial(in_versions, score=partial(harnesses.letter_score, harness_letter))


class VideoMMEV2Benchmark(AnnotatedBenchmark):
    """Video-MME-v2 in the layout of the release, of VLMEvalKit or of lmms-eval."""

    name = "videomme_v2"
    title = "Video-MME-v2"
    layout = "test.parquet or Video-MME-v2.tsv, and video/<id>.mp4 with ids 001 to 800"
    annotations = (
        "test.parquet",
        "Video-MME-v2.tsv",
        "videomme_v2.json",
        "videomme_v2.jsonl",
        *annotated.in_hub_cache("MME-Benchmarks/Video-MME-v2", "test.parquet"),
    )
    # The release and VLMEvalKit; lmms-eval below HF_HOME/videomme_v2 and below HF_HOME.
    folders = ("video", "videos", "data", "videomme_v2/data", "videomme_v2", ".")
    suffixes = annotated.VIDEO_SUFFIXES
    subtitle_folders = (
        *("subtitle", "subtitle/subtitle"),
        *("videomme_v2/subtitle", "videomme_v2/subtitle/subtitle"),
    )
    splits: ClassVar = {"test": 3200}
    protocols: ClassVar = {
        **_listed(
            "vlmevalkit",
            render_vlmevalkit,
            wordings=(("internvl", harnesses.for_internvl),),
            subtitles=SubtitleRule(all_words, render_vlmevalkit_subtitled),
        ),
        **_listed(
            "vlmevalkit_reasoning",
            partial(render_vlmevalkit, instruction=REASON_FIRST),
            max_new_tokens=4096,
            wordings=(("internvl", harnesses.for_internvl),),
            subtitles=SubtitleRule(
                all_words, partial(render_vlmevalkit_subtitled, instruction=REASON_FIRST)
            ),
        ),
        **_listed(
            "lmms_eval",
            render_lmms_eval,
            subtitles=SubtitleRule(all_words, render_lmms_eval_subtitled),
        ),
        **_listed(
            "lmms_eval_qwen3_vl",
            partial(render_lmms_eval, instruction=QWEN3_VL),
            subtitles=SubtitleRule(
                all_words, partial(render_lmms_eval_subtitled, instruction=QWEN3_VL)
            ),
        ),
        **_listed(
            "lmms_eval_reasoning",
            partial(render_lmms_eval, instruction=REASON_FIRST),
            max_new_tokens=4096,
        ),
    }
    metrics = (GROUP_SCORE, ACCURACY)
    unlisted_groups = (POSITION,)
    vlmevalkit_table = annotated.VLMEvalKitTable("Video-MME-v2", columns)
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "videomme_v2",
        sample_metrics,
        key_in=annotated.fields_of_metric("videomme_v2_score", "question_id"),
        subtitled_task="videomme_v2_w_subtitle",
    )
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
        (table,) = super()._tables()
        self._videos = [_video_of(row) for row in table.rows]
        self._positions: list[int] = []
        self._places: dict[str, list[int]] = defaultdict(list)
        self._kinds: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._heads: dict[str, dict[str, str]] = defaultdict(dict)
        for row, video in zip(table.rows, self._videos, strict=True):
            position = _position(row, len(self._places[video]) + 1)
            self._positions.append(position)
            self._places[video].append(position)
            kind = text_of(row, TYPE).strip().lower()
            structure = structure_of(str(row.get(STRUCTURE))) if kind == LOGIC else ""
            self._kinds[video].add((kind, structure))
            heads = self._heads[video]
            for name in HEADS:
                value = stated(row, name)
                if value is not None and (position == GROUP_SIZE or name not in heads):
                    heads[name] = value
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        text_of(row, "video_id", "video")
        video = self._videos[index]
        written = text_of(row, "options")
        choices = _options(written)
        answer = annotated.index_of_letter(text_of(row, "answer").strip(), choices)
        notes = annotated.option_notes(choices, answer)
        if (there := len(self._places[video])) != GROUP_SIZE:
            notes.append(f"{there} of {GROUP_SIZE} questions of the group; it has no group score")
        groups = self._groups_of(video, self._positions[index])
        return Record(
            video_id=video,
            path=self._video_path(video),
            question=Question(
                id=stated(row, "question_id") or f"{video}-{groups[POSITION]}",
                text=text_of(row, "question"),
                choices=choices,
                answer=answer,
                groups=groups,
            ),
            notes=(*notes, *annotated.form_notes(choices, written)),
        )

    def _groups_of(self, video: str, position: int) -> dict[str, str]:
        """The groups that a question is counted in; level and heads are those of the last row.

        Raises:
            ValueError: If the rows of the video are no group of four.
        """
        if not 1 <= position <= GROUP_SIZE:
            raise InputError(f"question_id must end in 1 to {GROUP_SIZE}, got {position}")
        if self._places[video].count(position) > 1:
            raise InputError(f"question {position} of the video occurs twice")
        if len(self._kinds[video]) > 1:
            raise InputError("the questions of the video differ in group_type or group_structure")
        ((kind, structure),) = self._kinds[video]
        if kind not in (RELEVANCE, LOGIC):
            raise InputError(f"group_type must be {RELEVANCE} or {LOGIC}, got {kind!r}")
        if kind == LOGIC and structure not in STRUCTURES:
            raise InputError(
                f"group_structure must be one of {', '.join(STRUCTURES)}, got {structure!r}"
            )
        structured = {STRUCTURE: structure} if kind == LOGIC else {}
        return {TYPE: kind, **structured, POSITION: str(position), **self._heads[video]}

    def subtitle_path(self, record: Record) -> str | None:
        """Where the `.jsonl` file of a question's video is; `None` for a video without."""
        return self.media.find(self.subtitle_folders, [f"{record.video_id}.jsonl"])


def _video_of(row: Row) -> str:
    """Id of a row's video; a table read as numbers has lost the zeros in front; "" for none."""
    value = next((row[k] for k in ("video_id", "video") if not is_missing(row.get(k))), "")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.zfill(3) if text.isdecimal() else text


def _position(row: Row, otherwise: int) -> int:
    """Place of a question in its group from 1, as its id says ("001-3"); -1 if that says nothing.

    Tables without ids have the questions of a group in their order.
    """
    own_id = stated(row, "question_id")
    if own_id is None:
        return otherwise
    last = own_id.rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _options(written: str) -> tuple[str, ...]:
    """The options of one text in which each begins a line with its letter.

    Raises:
        ValueError: If the letters are not A, B, C and so on.
    """
    marks: list[re.Match[str]] = []
    for mark in re.finditer(r"^\(?([A-Z])[.):]\)?\s*", written, re.MULTILINE):
        # A line inside an option may begin like one: only the next letter is one.
        if len(marks) < len(LETTERS) and mark[1] == LETTERS[len(marks)]:
            marks.append(mark)
    if len(marks) < 2 or written[: marks[0].start()].strip():
        raise InputError(f"options must be lines 'A. text', 'B. text' ..., got {written[:60]!r}")
    ends = [*(mark.start() for mark in marks[1:]), len(written)]
    return tuple(
        written[mark.end() : end].removesuffix("\n").removesuffix("\r")
        for mark, end in zip(marks, ends, strict=True)
    )
