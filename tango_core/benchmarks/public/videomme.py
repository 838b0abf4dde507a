"""Video-MME: 900 videos in three lengths, three questions each.

Fu et al., "Video-MME: The First-Ever Comprehensive Evaluation Benchmark of Multi-modal LLMs in
Video Analysis", 2024, https://arxiv.org/abs/2405.21075. Data: `lmms-lab/Video-MME` on the Hugging
Face hub. The published comparisons of pruning methods are without subtitles. Prompts and rules:
VLMEvalKit, `vlmeval/dataset/videomme.py`; lmms-eval, `lmms_eval/tasks/videomme`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from tango_core.benchmarks import annotated
from tango_core.benchmarks.base import CrossTable, PaperColumn
from tango_core.benchmarks.protocols import harnesses
from tango_core.benchmarks.protocols.protocol import LETTER_PLEASE, PromptTemplate, in_versions
from tango_core.benchmarks.protocols.subtitles import Cue, SubtitleRule, Watched, cues_of_srt
from tango_core.benchmarks.releases import Release
from tango_core.types import Subtitles

GROUPS = ("duration", "domain", "sub_category", "task_type")

_TASK = "Select the best answer to the following multiple-choice question based on the video"
_LETTER = "Respond with only the letter (A, B, C, or D) of the correct option."
_LISTED = "This video's subtitles are listed below:"
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
    "{subtitles}Question: {question}\nOptions:\n{options}\nAnswer with the option letter only.",
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
    group_columns: ClassVar = {name: name for name in GROUPS}
    splits: ClassVar = {"test": 2700}
    protocols: ClassVar = {
        **in_versions(
            "vlmevalkit",
            VLMEVALKIT,
            partial(harnesses.letter_score, _first_capital),
            wordings=(("internvl", harnesses.FOR_INTERNVL),),
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
