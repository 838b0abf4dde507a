"""Video-MME in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/videomme`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

_TASK = (
    "Select the best answer to the following multiple-choice question based on the video and the "
    "subtitles. Respond with only the letter (A, B, C, or D) of the correct option."
)
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


PROTOCOL = Protocol("lmms_eval", render, read_choice, harness_score=score, failed_reply=NOT_LOADED)
_LLAVA_VIDEO = replace(PROTOCOL, name="lmms_eval_llava_vid", render=render_llava_video)
PROTOCOLS = {
    name: protocol
    for own in (PROTOCOL, _LLAVA_VIDEO)
    for name, protocol in in_versions(own, replace(own, harness_score=score_2024_10)).items()
}
SAMPLES = LmmsEvalSamples(task=task, target=letter_target, metrics=metrics, key=key, key_in=key_in)
