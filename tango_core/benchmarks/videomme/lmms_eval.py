"""Video-MME in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/videomme` and
`lmms_eval/tasks/_task_utils/mcq_extract.py`.
"""

from __future__ import annotations

import re
from typing import Any

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    Sample,
    letter_target,
    right_letter,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

_TASK = (
    "Select the best answer to the following multiple-choice question based on the video and the "
    "subtitles. Respond with only the letter (A, B, C, or D) of the correct option."
)
_METRIC = "videomme_perception_score"
_LETTER_PLEASE = "Answer with the option's letter from the given choices directly."

# How sure a format makes us that this letter is the answer; a letter found anywhere has rank 0.
_RANKS = {
    "start": 10,
    "end": 9,
    "phrase": 7,
    "({})": 6,
    "{}.": 5,
    "{}:": 4,
    "{})": 3,
    "{} ": 2,
}
_PHRASES = (
    *(f"{the}{kind} is" for the in ("the ", "") for kind in ("answer", "choice")),
    *(
        f"{the}{which} {kind} is"
        for the in ("the ", "")
        for which, kind in (
            ("correct", "answer"),
            ("best", "answer"),
            ("correct", "option"),
            ("best", "option"),
            ("correct", "choice"),
        )
    ),
    "my answer is",
    "my choice is",
    "i choose",
    "i select",
    "i pick",
    "옵션",
    "정답은",
    "답은",
    "답:",
    "答案是",
    "答案为",
    "选",
    "答えは",
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


def ranked_letter(reply: str, letters: str) -> str:
    """Return the letter that a reply gives in the surest of ten formats, or "".

    A letter at the start is surer than one at the end, then follow "the answer is", "(A)", "A.",
    "A:", "A)", "A " and a letter anywhere; of several in the same format the last one counts.
    Phrases rank all letters behind them, in words too: "The answer is B. Can't be sure" is C.
    """
    text = reply.strip()
    for mark in ",.!?;:'\"":
        text = text.strip(mark)
    if not text:
        return ""
    text = f" {text} "
    stripped = text.strip()
    found: list[tuple[int, int, int]] = []
    for order, letter in enumerate(letters):
        for pattern, rank in _RANKS.items():
            if "{}" in pattern and pattern.format(letter) in text:
                found.append((rank, text.rfind(pattern.format(letter)), -order))
        for phrase in _PHRASES:
            begin = text.lower().find(phrase)
            at = text.find(letter, begin + len(phrase)) if begin != -1 else -1
            if at != -1:
                found.append((_RANKS["phrase"], at, -order))
        if re.match(rf"{letter}(?![^\W\d_])", stripped):
            found.append((_RANKS["start"], 0, -order))
        if re.search(rf"(?<![^\W\d_]){letter}$", stripped):
            found.append((_RANKS["end"], len(text) - 1, -order))
    if not found:
        found = [(0, text.rfind(x), -order) for order, x in enumerate(letters) if x in text]
    return letters[-max(found)[2]] if found else ""


def score(reply: str, question: Question) -> float | None:
    """1 if the ranked formats give the right letter; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(ranked_letter(reply, "ABCD") == letter_of(question.answer))


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


PROTOCOL = Protocol("lmms_eval", render, read_choice, harness_score=score)
LLAVA_VIDEO = Protocol("lmms_eval_llava_vid", render_llava_video, read_choice, harness_score=score)
SAMPLES = LmmsEvalSamples(task=task, target=letter_target, metrics=metrics, key=key, key_in=key_in)
