"""MLVU in VLMEvalKit: the prompt, the score, and the table of the data set."""

from __future__ import annotations

from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable, text_answer_columns
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.mlvu.tasks import TASKS
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.vlmevalkit import (
    FAILED_REPLY,
    choices_by_letter,
    infer_option,
    with_bracketed_options,
)
from tango_core.benchmarks.scoring.multiple_choice import letter_of
from tango_core.types import Prompt, Question

_TASK = (
    "Carefully watch this video and pay attention to every detail. Based on your observations, "
    "select the best option that accurately addresses the question."
)


def render(question: Question) -> Prompt:
    """MLVU: the task without a line break, the clip, the question."""
    return Prompt(
        before=_TASK, after=f"{with_bracketed_options(question)}\nOnly give the best option."
    )


def score(reply: str, question: Question) -> float:
    """1 if right, 0 if wrong, and -1 for a failure: M-Avg adds the scores, so it costs a point.

    The letter is the character before the first closing bracket, or the whole reply. A question
    whose answer is none of its options (two in the public release) is never right.
    """
    if FAILED_REPLY in reply:
        return -1.0
    if question.answer is None:
        return 0.0
    right = letter_of(question.answer)
    if ")" in reply:
        end = reply.index(")")
        letter = reply[end - 1 : end]
    else:
        letter = reply
    return float(letter == right or infer_option(reply, choices_by_letter(question)) == right)


def columns(record: Record) -> dict[str, Any]:
    """Columns of `MLVU_MCQ.tsv`."""
    task = record.question.groups["task"]
    return {
        "task_type": task,
        "prefix": f"./MLVU/video/{TASKS[task]}",
        "duration": record.row.get("duration", ""),
        **text_answer_columns(record),
    }


PROTOCOL = Protocol(
    "vlmevalkit",
    render,
    read_choice,
    harness_score=score,
    failed_reply=FAILED_REPLY,
)

TABLE = VLMEvalKitTable("MLVU_MCQ", columns)
