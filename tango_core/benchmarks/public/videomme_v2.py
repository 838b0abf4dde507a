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
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from tango_core.benchmarks import annotated
from tango_core.benchmarks.annotated import AnnotatedBenchmark, Record, Table
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import PromptTemplate, Protocol, in_versions
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.benchmarks.releases import Release, ReleasePart, in_hub_cache
from tango_core.benchmarks.scoring.multiple_choice import LETTERS, lettered
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
from tango_core.types import Subtitles

# The instruction comes last.
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
_LISTED = "This video's subtitles are listed below:\n{lines}\n"
_DELETED = (
    *(*harnesses.OPTION_PHRASES, "Final Answer:", "Best answer:"),
    *("Best option:", "Answer:", "Option:"),
)
# Columns that the release fills in a group's last row.
HEADS = ("level", "second_head", "third_head")


def vlmevalkit(instruction: str) -> PromptTemplate:
    """VLMEvalKit's prompt; no line break follows its first sentence."""
    return PromptTemplate(
        "These are the frames of a video.{subtitles}"
        f"Question: {{question}}\n{{options}}\n{instruction}",
        subtitles=f" {_LISTED}",
    )


def lmms_eval(instruction: str) -> PromptTemplate:
    """lmms-eval's prompt; without any subtitles it is that of the task without."""
    return PromptTemplate(
        f"{{subtitles}}Question: {{question}}\n{{options}}\n{instruction}",
        subtitles=f"{_LISTED}\n",
        omit_empty=True,
    )


def all_words(subtitles: Subtitles, _: Watched) -> str:
    """Join all words with a space, whatever frames are shown; "" for a damaged file.

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
    """Return a column of a row unchanged, as a string; `None` if it is empty."""
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
        "answer": annotated.right_letter(record),
        **{name: stated(record.row, name) for name in HEADS},
    }


def _protocols(
    name: str, template: PromptTemplate, subtitled: bool = True, **settings: Any
) -> dict[str, Protocol]:
    rule = SubtitleRule(all_words, template) if subtitled else None
    score = partial(harnesses.letter_score, harness_letter)
    return in_versions(name, template, score, subtitles=rule, **settings)


_FOR_INTERNVL = (("internvl", harnesses.FOR_INTERNVL),)


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
        *in_hub_cache("MME-Benchmarks/Video-MME-v2", "test.parquet"),
    )
    # The release and VLMEvalKit; lmms-eval below HF_HOME/videomme_v2 and below HF_HOME.
    folders = ("video", "videos", "data", "videomme_v2/data", "videomme_v2", ".")
    suffixes = annotated.VIDEO_SUFFIXES
    subtitle_folders = (
        *("subtitle", "subtitle/subtitle"),
        *("videomme_v2/subtitle", "videomme_v2/subtitle/subtitle"),
    )
    subtitle_suffix = ".jsonl"
    video_columns = ("video_id", "video")
    splits: ClassVar = {"test": 3200}
    protocols: ClassVar = {
        **_protocols("vlmevalkit", vlmevalkit(LETTER_ONLY), wordings=_FOR_INTERNVL),
        **_protocols(
            "vlmevalkit_reasoning",
            vlmevalkit(REASON_FIRST),
            max_new_tokens=4096,
            wordings=_FOR_INTERNVL,
        ),
        **_protocols("lmms_eval", lmms_eval(LETTER_ONLY)),
        **_protocols("lmms_eval_qwen3_vl", lmms_eval(QWEN3_VL)),
        **_protocols(
            "lmms_eval_reasoning", lmms_eval(REASON_FIRST), subtitled=False, max_new_tokens=4096
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
        # Video -> its rows with their positions in the group.
        self._rows: dict[str, list[tuple[int, Row]]] = defaultdict(list)
        for row in table.rows:
            rows = self._rows[_padded(row)]
            rows.append((_position(row, len(rows) + 1), row))
        return [table]

    def _record(self, index: int, number: int, row: Row, table: Table) -> Record:
        record = super()._record(index, number, row, table)
        count = len(self._rows[record.video_id])
        if count == GROUP_SIZE:
            return record
        note = f"{count} of {GROUP_SIZE} questions of the group; it has no group score"
        return replace(record, notes=(note, *record.notes))

    def _video(self, row: Row) -> str:
        super()._video(row)
        return _padded(row)

    def _question(self, row: Row) -> tuple[str, tuple[str, ...], str]:
        written = text_of(row, "options")
        return text_of(row, "question"), _options(written), written

    def _groups(self, row: Row) -> dict[str, str]:
        """The groups that a question is counted in; level and heads are those of the last row.

        Raises:
            ValueError: If the rows of the video are no group of four.
        """
        rows = self._rows[_padded(row)]
        position = next(at for at, one in rows if one is row)
        if not 1 <= position <= GROUP_SIZE:
            raise InputError(f"question_id must end in 1 to {GROUP_SIZE}, got {position}")
        if [at for at, _ in rows].count(position) > 1:
            raise InputError(f"question {position} of the video occurs twice")
        if len(kinds := {_kind(one) for _, one in rows}) > 1:
            raise InputError("the questions of the video differ in group_type or group_structure")
        ((kind, structure),) = kinds
        if kind not in (RELEVANCE, LOGIC):
            raise InputError(f"group_type must be {RELEVANCE} or {LOGIC}, got {kind!r}")
        if kind == LOGIC and structure not in STRUCTURES:
            raise InputError(
                f"group_structure must be one of {', '.join(STRUCTURES)}, got {structure!r}"
            )
        groups = {TYPE: kind, **({STRUCTURE: structure} if structure else {})}
        groups[POSITION] = str(position)
        for name in HEADS:
            values = {at: value for at, one in rows if (value := stated(one, name)) is not None}
            if values:
                groups[name] = values.get(GROUP_SIZE, next(iter(values.values())))
        return groups


def _kind(row: Row) -> tuple[str, str]:
    """Type and structure of a row's group; "" for no structure."""
    kind = text_of(row, TYPE).strip().lower()
    return kind, structure_of(str(row.get(STRUCTURE))) if kind == LOGIC else ""


def _padded(row: Row) -> str:
    """Id of a row's video with the leading zeros that a table of numbers has lost; "" for none."""
    value = next((row[k] for k in ("video_id", "video") if not is_missing(row.get(k))), "")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text.zfill(3) if text.isdecimal() else text


def _position(row: Row, otherwise: int) -> int:
    """Position of a question in its group from 1, by its id ("001-3"); -1 if that has no number.

    Tables without ids list the questions of a group in order.
    """
    own_id = stated(row, "question_id")
    if own_id is None:
        return otherwise
    last = own_id.rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _options(written: str) -> tuple[str, ...]:
    """Split a string of options, each of which begins a line with its letter.

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
