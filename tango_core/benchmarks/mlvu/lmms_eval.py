"""MLVU in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/mlvu`. `lmms_eval@2024-10` counts as the copy
did that the published latencies were made with, before change 364 of 2024-10-27.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    Sample,
    letter_target,
    plain,
    right_letter,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.lmms_eval import ranked_letter
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question


def render(question: Question) -> Prompt:
    """MLVU, task `mlvu_dev`, which ends with the beginning of a reply."""
    options = lettered(question.choices, "({letter}) {text}")
    # In its table the text of question and options ends in a line break: hence an empty line.
    lines = [question.text, *options, "", "Only give the best option.", "Best option: ("]
    return Prompt(before="", after="\n".join(lines))


def before_bracket(reply: str) -> str:
    """Return the character before the first closing bracket, or the whole reply without one."""
    reply = reply.strip()
    if ")" not in reply:
        return reply
    end = reply.index(")")
    return reply[end - 1 : end]


def score(reply: str, question: Question) -> float:
    """1 if the ranked formats give the right letter."""
    return float(
        question.answer is not None and ranked_letter(reply, "ABCD") == letter_of(question.answer)
    )


def score_2024_10(reply: str, question: Question) -> float:
    """1 if the character before the first closing bracket, or the whole reply, is the right letter.

    "B." and "B: a bag" are wrong.
    """
    return float(
        question.answer is not None and before_bracket(reply) == letter_of(question.answer)
    )


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """MLVU's metric, whose id is the question with its options."""
    return {
        "mlvu_percetion_score": {
            "question_id": _table_text(record),
            "task_type": record.question.groups["task"],
            "pred_answer": ranked_letter(reply, "ABCD"),
            "answer": right_letter(record),
        }
    }


def _table_text(record: Record) -> str:
    """Question and options as MLVU's table on the hub has them."""
    options = lettered(record.question.choices, "({letter}) {text}")
    return "\n".join([record.question.text, *options, ""])


def task(_: Record) -> str:
    """The one task of all questions."""
    return "mlvu_dev"


def key(record: Record) -> str:
    """What names a question: its task and its text."""
    return f"{record.question.groups['task']} {plain(_table_text(record))}"


def key_in(sample: Sample) -> str | None:
    """Task and text that a sample states; the name of the metric differs between versions."""
    for name, metric in sample.items():
        if name.startswith("mlvu") and isinstance(metric, dict):
            return f"{metric.get('task_type')} {plain(metric.get('question_id'))}"
    return None


PROTOCOL = Protocol(
    "lmms_eval", render, read_choice, harness_score=score, failed_reply=NOT_LOADED, macro=True
)
PROTOCOLS = in_versions(PROTOCOL, replace(PROTOCOL, harness_score=score_2024_10))
SAMPLES = LmmsEvalSamples(
    task=task, target=letter_target, metrics=metrics, key=key, key_in=key_in, by_doc_id=False
)
