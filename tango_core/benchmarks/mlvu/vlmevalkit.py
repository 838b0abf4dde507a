"""MLVU in VLMEvalKit: the prompt, the score, and the table of the data set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import VLMEvalKitTable, text_answer_columns
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.mlvu.tasks import TASKS
from tango_core.benchmarks.protocols.failures import FAILED_REPLY, NO_REPLY
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.protocols.vlmevalkit import infers, with_bracketed_options
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
    """1 if right, 0 if wrong, -1 for VLMEvalKit's failures: M-Avg adds the scores.

    The letter is the character before the first closing bracket, or the whole reply. A question
    whose answer is none of its options (two in the public release) is never right.
    """
    return _score(reply, question, stated=True)


def score_2026_05(reply: str, question: Question) -> float:
    """The same, but "The correct answer is B" counts only where B is among the last four words."""
    return _score(reply, question, stated=False)


def _score(reply: str, question: Question, *, stated: bool) -> float:
    """Rate a reply; see `infer_option` for `stated`."""
    if FAILED_REPLY in reply:
        return -1.0
    if question.answer is None:
        return 0.0
    letter = reply
    if ")" in reply:
        end = reply.index(")")
        letter = reply[end - 1 : end]
    right = letter_of(question.answer)
    return float(letter == right or infers(reply, question, stated=stated))


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
    failed_reply=NO_REPLY,
)
PROTOCOLS = in_versions(PROTOCOL, replace(PROTOCOL, harness_score=score_2026_05))

TABLE = VLMEvalKitTable("MLVU_MCQ", columns)
