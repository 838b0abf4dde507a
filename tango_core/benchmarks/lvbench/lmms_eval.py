"""LVBench in lmms-eval: the prompt, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/lvbench`. VLMEvalKit has no LVBench: under its
name the question is put in the same words, and there is no harness's score.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import LmmsEvalSamples, letter_target
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.lmms_eval import ranked_letter
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.multiple_choice import letter_of, lettered
from tango_core.types import Prompt, Question

# No full stop behind it.
_LETTER_PLEASE = "Answer the question with the option letter"


def render(question: Question) -> Prompt:
    """Question, options line by line, and the instruction."""
    options = lettered(question.choices, "({letter}) {text}")
    return Prompt(before="", after="\n".join([question.text, *options, _LETTER_PLEASE]))


def score(reply: str, question: Question) -> float | None:
    """1 if the ranked formats give the right letter; `None` if the answer is not known."""
    if question.answer is None:
        return None
    return float(ranked_letter(reply, "ABCD") == letter_of(question.answer))


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """LVBench's metric, which is only whether the letter is right."""
    return {"lvbench_score": bool(score(reply, record.question))}


def task(_: Record) -> str:
    """The one task of all questions."""
    return "lvbench"


PROTOCOL = Protocol("lmms_eval", render, read_choice, harness_score=score, failed_reply=NOT_LOADED)
PROTOCOLS = {
    **in_versions(PROTOCOL),
    "vlmevalkit": replace(PROTOCOL, name="vlmevalkit", harness_score=None, failed_reply=""),
}
SAMPLES = LmmsEvalSamples(task=task, target=letter_target, metrics=metrics)
