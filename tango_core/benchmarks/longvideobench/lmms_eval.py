"""LongVideoBench in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/longvideobench`.
"""

from __future__ import annotations

from typing import Any

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    Sample,
    right_letter,
    written_answer,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.lmms_eval import first_capital
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

_LETTER_PLEASE = "Answer with the option's letter from the given choices directly."
_METRIC = "lvb_acc"
_PREFIXES = (
    "The best answer is",
    "The correct answer is",
    "The answer is",
    "The answer",
    "The best option is",
    "The correct option is",
    "Best answer:",
    "Best option:",
)


def render(question: Question) -> Prompt:
    """LongVideoBench, task `longvideobench_val_v`, with a line break at the end."""
    lines = [question.text, *lettered(question.choices), f"{_LETTER_PLEASE}\n"]
    return Prompt(before="", after="\n".join(lines))


def letter_in(reply: str) -> str:
    """Return the first capital from A to E after known phrases are deleted, or ""."""
    return first_capital(reply, "ABCDE", _PREFIXES)


def score(reply: str, question: Question) -> float | None:
    """1 if the first capital from A to E is the right one; `None` if the answer is not known.

    A reply without one is answered at random there, from an unseeded generator; the score is then
    what that is worth on average, one over the number of options.
    """
    if question.answer is None:
        return None
    letter = letter_in(reply)
    if not letter:
        return 1.0 / len(question.choices)
    return float(letter == letter_of(question.answer))


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """LongVideoBench's metric; where lmms-eval would guess, the letter is empty."""
    question = record.question
    return {
        _METRIC: {
            "id": question.id,
            "duration_group": int(question.groups["duration"]),
            "question_category": question.groups["category"],
            "answer": right_letter(record),
            "parsed_pred": letter_in(reply),
        },
        "submission": {question.id: reply},
    }


def task(_: Record) -> str:
    """The one task of all questions."""
    return "longvideobench_val_v"


def target(record: Record) -> str:
    """The right option's index."""
    answer = record.question.answer
    return written_answer(record) if answer is None else str(answer)


def key(record: Record) -> str:
    """What names a question: its id in the release."""
    return record.question.id


def key_in(sample: Sample) -> str | None:
    """The question's id that a sample states."""
    metric = sample.get(_METRIC)
    return str(metric.get("id")) if isinstance(metric, dict) else None


PROTOCOL = Protocol(
    "lmms_eval",
    render,
    read_choice,
    max_new_tokens=32,
    harness_score=score,
    failed_reply=NOT_LOADED,
)
PROTOCOLS = in_versions(PROTOCOL)
SAMPLES = LmmsEvalSamples(task=task, target=target, metrics=metrics, key=key, key_in=key_in)
