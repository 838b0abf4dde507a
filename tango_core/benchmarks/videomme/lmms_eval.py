"""Video-MME in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/videomme`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    Sample,
    letter_target,
    right_letter,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.lmms_eval import first_capital, ranked_letter
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.subtitles import SubtitleRule, Watched, cues_of_srt
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question, Subtitles

_TASK = (
    "Select the best answer to the following multiple-choice question based on the video and the "
    "subtitles. Respond with only the letter (A, B, C, or D) of the correct option."
)
_NO_SUBTITLES = "No subtitles available"
# Video-MME's files hold every line in such a tag; a cue without it is left out.
_LINE = re.compile(r'<font color="white" size=".72c">(.*?)</font>')
_METRIC = "videomme_perception_score"
_LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

# Phrases that the older rule deletes; two commas are missing there, hence the two long ones.
_DELETED = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option isThe correct option is",
    "Best answer:Best option:",
)


def render(question: Question) -> Prompt:
    """Video-MME; the text mentions subtitles also where there are none."""
    return Prompt(before="", after=f"{_videomme(question)}\n\n{_LETTER_PLEASE}")


def render_llava_video(question: Question) -> Prompt:
    """Video-MME with the ending that lmms-eval uses for LLaVA-Video."""
    return Prompt(before="", after=f"{_videomme(question)}\nThe best answer is:")


def render_qwen3_vl(question: Question) -> Prompt:
    """Video-MME in the words that lmms-eval has for Qwen3-VL."""
    options = "\n".join(lettered(question.choices))
    asked = f"Question: {question.text}\nOptions:\n{options}"
    return Prompt(before="", after=f"{asked}\nAnswer with the option letter only.")


def render_subtitled(question: Question, lines: str) -> Prompt:
    """Task `videomme_w_subtitle`, which ends in the same words for every model."""
    return _below(lines, render_llava_video(question))


def render_qwen3_vl_subtitled(question: Question, lines: str) -> Prompt:
    """The same for Qwen3-VL."""
    return _below(lines, render_qwen3_vl(question))


def _below(lines: str, prompt: Prompt) -> Prompt:
    """The prompt with subtitles above it."""
    after = f"This video's subtitles are listed below: \n{lines}\n{prompt.after}"
    return Prompt(before="", after=after)


def choose_subtitles(subtitles: Subtitles, watched: Watched) -> str:
    """Every cue that is on the screen at one of 32 frames, whatever the model is shown."""
    return _chosen(subtitles, watched, 32)


def choose_subtitles_llava_video(subtitles: Subtitles, watched: Watched) -> str:
    """Every cue that is on the screen at one of the 768 frames that LLaVA-Video's setting names."""
    return _chosen(subtitles, watched, 768)


def _chosen(subtitles: Subtitles, watched: Watched, num_frames: int) -> str:
    """Every cue that is on the screen at one of some frames from first to last, once."""
    if subtitles.text is None:
        return _NO_SUBTITLES
    by_times = {
        (cue.start_ms, cue.end_ms): " ".join(cue.lines) for cue in cues_of_srt(subtitles.text)
    }
    cues = list(by_times.items())
    frames = _frames(watched, num_frames)
    found = []
    for index, ((start, end), _) in enumerate(cues):
        bounds = [
            ms / 1000 if watched.rate is None else int(ms / 1000 * watched.rate)
            for ms in (start, end)
        ]
        first = bisect_left(frames, bounds[0])
        if first < num_frames and frames[first] < bounds[1]:
            found.append((first, index))
    # A set, as there, filled frame by frame: its numbers need not be in order of time.
    lines = [_LINE.search(cues[index][1]) for index in list({index for _, index in sorted(found)})]
    return "\n".join(line[1] for line in lines if line)


def _frames(watched: Watched, num_frames: int) -> list[float]:
    """Its frames by their numbers, or by their times in seconds where no numbers are known."""
    last = watched.duration_s if watched.num_available is None else watched.num_available - 1
    places = np.linspace(0, last, num_frames)
    kept: list[float] = (places if watched.rate is None else places.astype(int)).tolist()
    return kept


def _videomme(question: Question) -> str:
    """Task, question and options."""
    return "\n".join([_TASK, question.text, *lettered(question.choices)])


def score(reply: str, question: Question) -> float | None:
    """1 if the ranked formats give the right letter; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(ranked_letter(reply, "ABCD") == letter_of(question.answer))


def score_2024_10(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to D is the right letter; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(first_capital(reply, "ABCD", _DELETED) == letter_of(question.answer))


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """Video-MME's metric."""
    groups = record.question.groups
    letter = ranked_letter(reply, "ABCD")
    return {
        _METRIC: {
            "question_id": record.question.id,
            "duration": groups["duration"],
            "category": groups["domain"],
            "sub_category": groups["sub_category"],
            "task_category": groups["task_type"],
            "pred_answer": letter,
            "answer": right_letter(record),
            "score": float(letter == right_letter(record)),
            "videoID": record.video_id,
        }
    }


def task(_: Record) -> str:
    """The one task of all questions."""
    return "videomme"


def key(record: Record) -> str:
    """What names a question: its id in the release."""
    return record.question.id


def key_in(sample: Sample) -> str | None:
    """The question's id that a sample states."""
    metric = sample.get(_METRIC)
    return str(metric.get("question_id")) if isinstance(metric, dict) else None


PROTOCOL = Protocol(
    "lmms_eval",
    render,
    read_choice,
    harness_score=score,
    failed_reply=NOT_LOADED,
    subtitles=SubtitleRule(choose_subtitles, render_subtitled),
)
_LLAVA_VIDEO = replace(
    PROTOCOL,
    name="lmms_eval_llava_vid",
    render=render_llava_video,
    subtitles=SubtitleRule(choose_subtitles_llava_video, render_subtitled),
)
_QWEN3_VL = replace(
    PROTOCOL,
    name="lmms_eval_qwen3_vl",
    render=render_qwen3_vl,
    subtitles=SubtitleRule(choose_subtitles, render_qwen3_vl_subtitled),
)
PROTOCOLS = {
    name: protocol
    for own in (PROTOCOL, _LLAVA_VIDEO, _QWEN3_VL)
    for name, protocol in in_versions(own, replace(own, harness_score=score_2024_10)).items()
}
SAMPLES = LmmsEvalSamples(
    task=task,
    target=letter_target,
    metrics=metrics,
    key=key,
    key_in=key_in,
    subtitled_task="videomme_w_subtitle",
)
