"""TempCompass in VLMEvalKit: the prompts, the score, and the table of the concatenated data set.

The data set `TempCompass` is three others one after the other, which it takes apart again before it
rates them: `TempCompass_MCQ` (multi-choice, then caption matching), `_Captioning` and `_YorN`.
"""

from __future__ import annotations

from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable, written_answer
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.tempcompass.reading import read_choice
from tango_core.benchmarks.tempcompass.rules import rated
from tango_core.benchmarks.tempcompass.tasks import (
    CAPTION_MATCHING,
    CAPTIONING,
    MULTI_CHOICE,
    YES_NO,
)
from tango_core.types import Prompt, Question

_BEST = "\nPlease directly give the best option:"
ENDINGS = {
    MULTI_CHOICE: _BEST,
    CAPTION_MATCHING: _BEST,
    YES_NO: "\nPlease answer yes or no:",
    CAPTIONING: "",
}
# A caption and a repeated sentence are longer than a letter.
MAX_NEW_TOKENS = 128
_DATASETS = {
    MULTI_CHOICE: "TempCompass_MCQ",
    CAPTION_MATCHING: "TempCompass_MCQ",
    CAPTIONING: "TempCompass_Captioning",
    YES_NO: "TempCompass_YorN",
}


def render(question: Question) -> Prompt:
    """The question as it is in the release, options included, and the ending of its form."""
    return Prompt(before="", after=question.text + ENDINGS[question.groups["task"]])


def score(reply: str, question: Question) -> float | None:
    """What exact matching gives: a reply that matches no rule is wrong; captions have no score."""
    if question.answer is None:
        return None
    return rated(reply, question) or 0.0


def columns(record: Record) -> dict[str, Any]:
    """Columns of the concatenated table; those of other forms are empty."""
    question = record.question
    task = question.groups["task"]
    stem, *options = question.text.split("\n")
    listed = task in (MULTI_CHOICE, CAPTION_MATCHING)
    captioning = task == CAPTIONING
    return {
        "task_type": task,
        "prefix": "./videos",
        "suffix": ".mp4",
        "video": record.video_id,
        "question": stem if listed else question.text,
        "answer": written_answer(record),
        "dim": question.groups["dimension"],
        "candidates": str(options) if listed else "",
        "mc_question": str(record.row.get("mc_question") or "") if captioning else "",
        "mc_answer": str(record.row.get("mc_answer") or "") if captioning else "",
        "SUB_DATASET": _DATASETS[task],
        "original_index": record.index if listed else record.number,
        "index": record.index,
    }


PROTOCOL = Protocol(
    "vlmevalkit",
    render,
    read_choice,
    max_new_tokens=MAX_NEW_TOKENS,
    harness_score=score,
    failed_reply=NO_REPLY,
)
PROTOCOLS = in_versions(PROTOCOL)
TABLE = VLMEvalKitTable("TempCompass", columns)
