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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import PromptTemplate, Protocol, in_versions
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched
from tango_core.benchmarks.releases import Release
from tango_core.benchmarks.scoring.multiple_choice import LETTERS
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, GROUP_SCORE, metric
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
_PHRASES = ("Final Answer:", "Best answer:", "Best option:", "Answer:", "Option:")
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
    return harnesses.first_capital(reply, "ABCDEFGH", (*harnesses.OPTION_PHRASES, *_PHRASES))


def _protocols(
    name: str, template: PromptTemplate, subtitled: bool = True, **settings: Any
) -> dict[str, Protocol]:
    rule = SubtitleRule(all_words, template) if subtitled else None
    score = partial(harnesses.letter_score, harness_letter)
    return in_versions(name, template, score, subtitles=rule, **settings)


_FOR_INTERNVL = (("internvl", harnesses.FOR_INTERNVL),)
_REASONING: dict[str, Any] = {"max_new_tokens": 4096}


class VideoMMEV2Benchmark(annotated.AnnotatedBenchmark):
    """Video-MME-v2 in the layout of the release, of VLMEvalKit or of lmms-eval."""

    name = "videomme_v2"
    title = "Video-MME-v2"
    layout = "test.parquet or Video-MME-v2.tsv, and video/<id>.mp4 with ids 001 to 800"
    annotations = ("test.parquet", "Video-MME-v2.tsv", "videomme_v2.json", "videomme_v2.jsonl")
    folders = ("video", "videos", "data")
    subtitle_suffix = ".jsonl"
    video_columns = ("video_id", "video")
    splits: ClassVar = {"test": 3200}
    protocols: ClassVar = {
        **_protocols("vlmevalkit", vlmevalkit(LETTER_ONLY), wordings=_FOR_INTERNVL),
        **_protocols(
            "vlmevalkit_reasoning", vlmevalkit(REASON_FIRST), **_REASONING, wordings=_FOR_INTERNVL
        ),
        **_protocols("lmms_eval", lmms_eval(LETTER_ONLY)),
        **_protocols("lmms_eval_qwen3_vl", lmms_eval(QWEN3_VL)),
        **_protocols("lmms_eval_reasoning", lmms_eval(REASON_FIRST), subtitled=False, **_REASONING),
    }
    metrics = (GROUP_SCORE, ACCURACY)
    unlisted_groups = (metric.POSITION,)
    vlmevalkit_table = annotated.VLMEvalKitTable(
        "Video-MME-v2",
        annotated.table_columns(
            "index video video_path subtitle_path url group_type group_structure question_id "
            "question options answer level second_head third_head",
            video_path="./video/{video}.mp4",
            subtitle_path="./subtitle/{video}.jsonl",
        ),
    )
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "videomme_v2",
        annotated.letter_metric(
            "videomme_v2_score",
            harness_letter,
            "video_id question_id group_type group_structure level second_head third_head "
            "pred_answer answer score",
            number=int,
            video_id="{video}",
        ),
        key_in=annotated.fields_of_metric("videomme_v2_score", "question_id"),
        subtitled_task="videomme_v2_w_subtitle",
    )
    releases = (
        Release(
            repository="MME-Benchmarks/Video-MME-v2",
            licence="research only, by the terms of Video-MME-v2",
            annotations=("test.parquet",),
            videos=("videos/*.zip",),
            subtitles=("subtitle/*.jsonl", "*subtitle*.zip"),
        ),
    )

    def _rows(self, path: Path) -> list[tables.Row]:
        """Read the rows; each gets the position in its group, and the whole group."""
        rows = super()._rows(path)
        groups: dict[str, list[tables.Row]] = defaultdict(list)
        for row in rows:
            with suppress(InputError):  # a row without a video is a defect of its own
                groups[self._file(row)].append(row)
        self._group = groups
        return rows

    def _file(self, row: tables.Row) -> str:
        """Id of a row's video with the leading zeros that a table of numbers has lost."""
        text = super()._file(row).removesuffix(".0")
        return text.zfill(3) if text.isdecimal() else text

    def _question(self, row: tables.Row) -> tuple[str, tuple[str, ...]]:
        return tables.text_of(row, "question"), _options(tables.text_of(row, "options"))

    def _groups(self, row: tables.Row) -> dict[str, str]:
        """The groups that a question is counted in; level and heads are those of the last row.

        Raises:
            ValueError: If the rows of the video are no group of four.
        """
        rows = self._group[self._file(row)]
        positions = [_position(one, number) for number, one in enumerate(rows, start=1)]
        position = next(at for at, one in zip(positions, rows, strict=True) if one is row)
        if not 1 <= position <= metric.GROUP_SIZE:
            raise InputError(f"question_id must end in 1 to {metric.GROUP_SIZE}, got {position}")
        if positions.count(position) > 1:
            raise InputError(f"question {position} of the video occurs twice")
        if len(kinds := set(map(_kind, rows))) > 1:
            raise InputError("the questions of the video differ in group_type or group_structure")
        ((kind, structure),) = kinds
        if kind not in (metric.RELEVANCE, metric.LOGIC):
            raise InputError(
                f"group_type must be {metric.RELEVANCE} or {metric.LOGIC}, got {kind!r}"
            )
        if kind == metric.LOGIC and structure not in metric.STRUCTURES:
            raise InputError(
                f"group_structure must be one of {', '.join(metric.STRUCTURES)}, got {structure!r}"
            )
        groups = {metric.TYPE: kind, **({metric.STRUCTURE: structure} if structure else {})}
        groups[metric.POSITION] = str(position)
        for name in HEADS:
            stated = zip(positions, (one.get(name) for one in rows), strict=True)
            values = {at: str(value) for at, value in stated if not tables.is_missing(value)}
            if values:
                groups[name] = values.get(metric.GROUP_SIZE, next(iter(values.values())))
        return groups


def _kind(row: tables.Row) -> tuple[str, str]:
    """Type and structure of a row's group; "" for no structure."""
    kind = tables.text_of(row, metric.TYPE).strip().lower()
    return kind, metric.structure_of(str(row.get(metric.STRUCTURE))) if kind == metric.LOGIC else ""


def _position(row: tables.Row, otherwise: int) -> int:
    """Position of a question in its group from 1, by its id ("001-3"); -1 if that has no number.

    Tables without ids list the questions of a group in order.
    """
    if tables.is_missing(row.get("question_id")):
        return otherwise
    last = str(row["question_id"]).rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _options(written: str) -> tuple[str, ...]:
    """Split a string of options, each of which begins a line with its letter.

    Raises:
        ValueError: If the letters are not A, B, C and so on.
    """
    found, rest = [], written
    # A line inside an option may begin like one: only the next letter is one.
    for letter in LETTERS:
        text, *after = re.split(rf"^\(?{letter}[.):]\)?\s*", rest, maxsplit=1, flags=re.MULTILINE)
        found.append(text.removesuffix("\n").removesuffix("\r"))
        if not after:
            break
        rest = after[0]
    if len(found) < 3 or found[0].strip():
        raise InputError(f"options must be lines 'A. text', 'B. text' ..., got {written[:60]!r}")
    return tuple(found[1:])
