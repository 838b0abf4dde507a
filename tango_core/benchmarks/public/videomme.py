"""Video-MME: 900 videos in three lengths, three questions each.

Fu et al., "Video-MME: The First-Ever Comprehensive Evaluation Benchmark of Multi-modal LLMs in
Video Analysis", 2024, https://arxiv.org/abs/2405.21075. Data: `lmms-lab/Video-MME` on the Hugging
Face hub. The published comparisons of pruning methods are without subtitles. Prompts and rules:
VLMEvalKit, `vlmeval/dataset/videomme.py`; lmms-eval, `lmms_eval/tasks/videomme`.

Video-MME-v2: 800 videos, four questions each with eight options, which have one score together.
MME-Benchmarks/Video-MME-v2 on GitHub (b24176a1) and on the Hugging Face hub. The headline is the
group score (`tango_core.metrics.metric`); plain accuracy stands beside it. Prompts and rules:
VLMEvalKit, `vlmeval/dataset/videomme_v2.py`; lmms-eval, `lmms_eval/tasks/videomme_v2`. VLMEvalKit
shows models that read a file, such as Qwen's, 64 frames of 448 x 448 pixels in the clip's shape:
`model: {num_frames: 64, frame_area: 200704}` does so here.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tango_core.benchmarks import annotated, tables
from tango_core.benchmarks.base import CrossTable, PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import (
    LETTER_PLEASE,
    PromptTemplate,
    Protocol,
    in_versions,
)
from tango_core.benchmarks.protocols.subtitles import Cue, SubtitleRule, Watched, cues_of_srt
from tango_core.benchmarks.releases import Release
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, GROUP_SCORE, metric
from tango_core.types import Subtitles

_TASK = "Select the best answer to the following multiple-choice question based on the video"
_LETTER = "Respond with only the letter (A, B, C, or D) of the correct option."
_LISTED = "This video's subtitles are listed below:"
ONE_LETTER = "Answer with the option letter only."
VLMEVALKIT = PromptTemplate(
    "\nThese are the frames of a video. {subtitles}"
    f"{_TASK}. {_LETTER}\nQuestion: {{question}}\n{{options}}\nAnswer: ",
    subtitles=f"{_LISTED}\n{{lines}}\n",
)
# The prompt mentions subtitles also where there are none.
_ASKED = f"{_TASK} and the subtitles. {_LETTER}\n{{question}}\n{{options}}"
LMMS_EVAL = PromptTemplate(f"{_ASKED}\n\n{LETTER_PLEASE}")
# For LLaVA-Video, and for every model in the task with subtitles.
LLAVA_VIDEO = PromptTemplate(
    f"{{subtitles}}{_ASKED}\nThe best answer is:", subtitles=f"{_LISTED} \n{{lines}}\n"
)
QWEN3_VL = PromptTemplate(
    f"{{subtitles}}Question: {{question}}\nOptions:\n{{options}}\n{ONE_LETTER}",
    subtitles=f"{_LISTED} \n{{lines}}\n",
)
# pysubs2 turns these three tags of SubRip into codes of its own and drops all others.
_KEPT_TAG = re.compile(r"< *(/?) *([isu]) *>")
_TAG = re.compile(r"< */? *[a-zA-Z][^>]*>")
# A frame is shown less than this before the time in the video that it stands for.
_LONGEST_FRAME_MS = 100
# The release's files of subtitles hold every line in such a tag; lmms-eval drops a cue without it.
_LINE = re.compile(r'<font color="white" size=".72c">(.*?)</font>')


def choose_vlmevalkit(subtitles: Subtitles, watched: Watched) -> str:
    """Select the first cue that is on the screen at each of VLMEvalKit's frames, a line per frame.

    VLMEvalKit takes k frames as for models that read lists of images, n / (k + 1) apart, also for a
    model that reads a video. A cue that lasts longer is repeated.
    """
    cues = [(cue.start_ms, cue.end_ms, _text_of(cue)) for cue in cues_of_srt(subtitles.text or "")]
    texts = (
        next((text for start, end, text in cues if start < time < end), "")
        for time in _frame_times_ms(watched)
    )
    return "\n".join(text for text in texts if text.strip())


def _frame_times_ms(watched: Watched) -> list[int]:
    """When VLMEvalKit's frames are shown, in milliseconds."""
    numbers = range(1, watched.num_frames + 1)
    if watched.rate is None or watched.num_available is None:
        step_ms = watched.duration_s * 1000 / (watched.num_frames + 1)
        evenly = [number * step_ms for number in numbers]
        shown = [1000 * time for time in watched.times]
        # Models that read lists of images are shown these very frames.
        are_same = len(shown) == len(evenly) and all(
            -1 < time - own < _LONGEST_FRAME_MS for time, own in zip(evenly, shown, strict=True)
        )
        return [round(time) for time in (shown if are_same else evenly)]
    step = watched.num_available / (watched.num_frames + 1)
    return [round(int(number * step) * (1000 / watched.rate)) for number in numbers]


def _text_of(cue: Cue) -> str:
    """A cue's text as pysubs2 reads it, with a space for a line break."""
    # The number of the next cue is not one of the lines.
    text = re.sub(r"\n+ *\d+ *$", "", "\n".join(cue.lines).strip())
    if re.fullmatch(r"\d+", text) and not "".join(cue.lines[:1]).strip():
        return ""
    text = _KEPT_TAG.sub(lambda tag: f"{{\\{tag[2]}{0 if tag[1] else 1}}}", text)
    return _TAG.sub("", text).replace("\n", " ")


def choose_lmms_eval(subtitles: Subtitles, watched: Watched, num_frames: int = 32) -> str:
    """Select every cue that is on the screen at one of some frames from first to last, once.

    lmms-eval looks at 32 frames whatever the model is shown, at 768 for LLaVA-Video.
    """
    if subtitles.text is None:
        return "No subtitles available"
    by_times = {
        (cue.start_ms, cue.end_ms): " ".join(cue.lines) for cue in cues_of_srt(subtitles.text)
    }
    # Frames by their numbers, or by their times in seconds where no numbers are known.
    rate = watched.rate
    last = watched.duration_s if watched.num_available is None else watched.num_available - 1
    evenly = np.linspace(0, last, num_frames)
    frames: list[float] = (evenly if rate is None else evenly.astype(int)).tolist()
    found = []
    for index, times in enumerate(by_times):
        start, end = (ms / 1000 if rate is None else int(ms / 1000 * rate) for ms in times)
        first = bisect_left(frames, start)
        if first < num_frames and frames[first] < end:
            found.append((first, index))
    # A set of integers, as in lmms-eval, filled frame by frame: it may not be in order of time.
    cues = list(by_times.values())
    lines = [_LINE.search(cues[index]) for index in list({index for _, index in sorted(found)})]
    return "\n".join(line[1] for line in lines if line)


_FOR_INTERNVL = (("internvl", harnesses.for_internvl),)
_first_capital = partial(harnesses.first_capital, letters="ABCD")
_lmms_eval = partial(
    in_versions,
    score=harnesses.ranked_score,
    older=partial(
        harnesses.letter_score, partial(_first_capital, phrases=harnesses.MERGED_PHRASES)
    ),
)
_PARQUET = "videomme/test-00000-of-00001.parquet"
_RELEASE = Release(
    repository="lmms-lab/Video-MME",
    licence="academic research only, by the terms of Video-MME",
    annotations=("videomme/test-*.parquet",),
    videos=("videos_chunked_*.zip",),
    subtitles=("subtitle.zip",),
)


class VideoMMEBenchmark(annotated.AnnotatedBenchmark):
    """Video-MME in the layout of the release, of VLMEvalKit (`Video-MME.tsv`) or of lmms-eval."""

    name = "videomme"
    title = "Video-MME"
    layout = f"{_PARQUET} or Video-MME.tsv, and video/<videoID>.mp4 or data/<videoID>.mp4"
    annotations = (
        *(_PARQUET, "test-00000-of-00001.parquet", "Video-MME.tsv"),
        *("videomme.json", "videomme.jsonl"),
    )
    folders = ("video", "data")
    # VLMEvalKit's table calls the YouTube id `video`.
    video_columns = ("videoID", "video")
    options_have_letters = True
    group_columns: ClassVar = {
        name: name for name in ("duration", "domain", "sub_category", "task_type")
    }
    splits: ClassVar = {"test": 2700}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            VLMEVALKIT,
            partial(harnesses.letter_score, _first_capital),
            wordings=_FOR_INTERNVL,
            subtitles=SubtitleRule(choose_vlmevalkit, VLMEVALKIT),
        ),
        **_lmms_eval("lmms_eval", LMMS_EVAL, subtitles=SubtitleRule(choose_lmms_eval, LLAVA_VIDEO)),
        **_lmms_eval(
            "lmms_eval_llava_vid",
            LLAVA_VIDEO,
            subtitles=SubtitleRule(partial(choose_lmms_eval, num_frames=768), LLAVA_VIDEO),
        ),
        **_lmms_eval(
            "lmms_eval_qwen3_vl", QWEN3_VL, subtitles=SubtitleRule(choose_lmms_eval, QWEN3_VL)
        ),
    }
    paper_column = PaperColumn(1, "duration", ("short", "medium", "long"))
    cross_table = CrossTable("duration", ("domain", "sub_category", "task_type"))
    vlmevalkit_table = annotated.VLMEvalKitTable(
        "Video-MME",
        annotated.table_columns(
            "index video video_path duration domain candidates sub_category task_type "
            "subtitle_path question answer",
            video_path="./video/{video}.mp4",
            subtitle_path="./subtitle/{video}.srt",
        ),
    )
    lmms_eval_samples = annotated.LmmsEvalSamples(
        "videomme",
        annotated.letter_metric(
            "videomme_perception_score",
            harnesses.ranked_letter,
            "question_id duration category sub_category task_category pred_answer answer score "
            "videoID",
            category="{domain}",
            task_category="{task_type}",
            videoID="{video}",
        ),
        key_in=annotated.fields_of_metric("videomme_perception_score", "question_id"),
        subtitled_task="videomme_w_subtitle",
    )
    releases = (_RELEASE, replace(_RELEASE, repository="lmms-eval/Video-MME"))


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
_PHRASES = ("Final Answer:", "Best answer:", "Best option:", "Answer:", "Option:")
# Columns that the release fills in a group's last row.
HEADS = ("level", "second_head", "third_head")


def vlmevalkit(instruction: str) -> PromptTemplate:
    """VLMEvalKit's prompt; no line break follows its first sentence."""
    return PromptTemplate(
        "These are the frames of a video.{subtitles}"
        f"Question: {{question}}\n{{options}}\n{instruction}",
        subtitles=f" {_LISTED}\n{{lines}}\n",
    )


def lmms_eval(instruction: str) -> PromptTemplate:
    """lmms-eval's prompt; without any subtitles it is that of the task without."""
    return PromptTemplate(
        f"{{subtitles}}Question: {{question}}\n{{options}}\n{instruction}",
        subtitles=f"{_LISTED}\n{{lines}}\n\n",
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
        **_protocols("lmms_eval_qwen3_vl", lmms_eval(ONE_LETTER)),
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
        """Read the rows, also by video; each gets its position in those of its video."""
        self._of_video: dict[str, list[tables.Row]] = defaultdict(list)
        rows = []
        for row in super()._rows(path):
            own: list[tables.Row] = []
            with suppress(InputError):  # a row without a video is a defect of its own
                own = self._of_video[self._file(row)]
            own.append({**row, metric.POSITION: _position(row, len(own) + 1)})
            rows.append(own[-1])
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
        rows, position = self._of_video[self._file(row)], row[metric.POSITION]
        if not 1 <= position <= metric.GROUP_SIZE:
            raise InputError(f"question_id must end in 1 to {metric.GROUP_SIZE}, got {position}")
        if sum(one[metric.POSITION] == position for one in rows) > 1:
            raise InputError(f"question {position} of the video occurs twice")
        if len(kinds := set(map(_kind, rows))) > 1:
            raise InputError("the questions of the video differ in group_type or group_structure")
        ((kind, structure),) = kinds
        if (kind, structure) not in _KINDS:
            raise InputError(
                f"group_type must be {metric.RELEVANCE}, or {metric.LOGIC} with a group_structure "
                f"of {', '.join(metric.STRUCTURES)}, got {kind!r} with {structure!r}"
            )
        groups = {metric.TYPE: kind, **({metric.STRUCTURE: structure} if structure else {})}
        groups[metric.POSITION] = str(position)
        last_first = sorted(rows, key=lambda one: one[metric.POSITION] != metric.GROUP_SIZE)
        for name in HEADS:
            values = [one[name] for one in last_first if not tables.is_missing(one.get(name))]
            if values:
                groups[name] = str(values[0])
        return groups


# Types of groups with their structures.
_KINDS = {(metric.RELEVANCE, ""), *((metric.LOGIC, own) for own in metric.STRUCTURES)}


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
    before, *options = tables.split_options(written, r"^\(?{}[.):]\)?\s*")
    if len(options) < 2 or before.strip():
        raise InputError(f"options must be lines 'A. text', 'B. text' ..., got {written[:60]!r}")
    return tuple(one.removesuffix("\n").removesuffix("\r") for one in options)
