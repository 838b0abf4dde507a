"""MVBench in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/mvbench`.
"""

from __future__ import annotations

import re
from typing import Any

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    written_answer,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.mvbench.tasks import TASK_OF
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

# Not a look-behind: the original says "(?!<=", which never fails on a full stop.
_FULL_STOP = re.compile(r"(?!<=\d)(\.)(?!\d)")
_THOUSANDS = re.compile(r"(\d)(\,)(\d)")
_PUNCTUATION = (*';/[]"{}()=+\\_-><@`,?!',)
# The original passes `re.UNICODE` where `re.sub` expects a count.
_MAX_FULL_STOPS = int(re.UNICODE)


def render(question: Question) -> Prompt:
    """MVBench, without a space after the colon."""
    options = lettered(question.choices, "({letter}) {text}")
    lines = [f"Question:{question.text}", "Option:", *options, "Only give the best option.\n"]
    return Prompt(before="", after="\n".join(lines))


def score(reply: str, question: Question) -> float | None:
    """1 if a stand-alone letter is the right one, in either case: "a bag" is A.

    `None` for an empty reply, which leaves the denominator there, so that saying nothing raises
    the accuracy.
    """
    if question.answer is None or reply == "":
        return None
    return float(_only_letter(reply) == _right_letter(question))


def _right_letter(question: Question) -> str:
    """The right letter, of equal options the first; "" if there is none."""
    if question.answer is None:
        return ""
    return letter_of(question.choices.index(question.choices[question.answer]))


def _only_letter(reply: str) -> str:
    """Read a reply as MVBench's `mcq_acc` does: "B. text", or the first word that is a letter."""
    opening = re.match(r"([A-E])\.\s*(.+)$", reply.strip(), re.IGNORECASE)
    if opening:
        return opening[1].upper()
    text = reply.replace("\n", " ").replace("\t", " ").strip()
    cleaned = text
    for mark in _PUNCTUATION:
        touches = f"{mark} " in text or f" {mark}" in text or _THOUSANDS.search(text)
        cleaned = cleaned.replace(mark, "" if touches else " ")
    cleaned = _FULL_STOP.sub("", cleaned, count=_MAX_FULL_STOPS)
    cleaned = cleaned.strip("'").strip('"').strip(")").strip("(").strip().lower()
    letter = re.search(r"\b([A-E])\b", cleaned, re.IGNORECASE)
    return letter[1].upper() if letter else cleaned


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """MVBench's metric."""
    value = int(score(reply, record.question) or 0)
    return {
        "mvbench_accuracy": {
            "pred_answer": reply,
            "gt_answer": _right_letter(record.question),
            "score": value,
        }
    }


def task(record: Record) -> str:
    """A task of lmms-eval per task of MVBench."""
    return f"mvbench_{TASK_OF[record.question.groups['task']].stem}"


def target(record: Record) -> str:
    """The right option's text."""
    answer = record.question.answer
    return written_answer(record) if answer is None else record.question.choices[answer]


def doc_id(record: Record) -> int:
    """Row in the task's own table, with which question ids end."""
    return int(record.question.id.rpartition("-")[2])


PROTOCOL = Protocol("lmms_eval", render, read_choice, harness_score=score, failed_reply=NOT_LOADED)
PROTOCOLS = in_versions(PROTOCOL)
SAMPLES = LmmsEvalSamples(task=task, target=target, metrics=metrics, doc_id=doc_id)
