"""Video-MME-v2 in lmms-eval: the prompts, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/videomme_v2`.
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
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.reading import read_choice
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.videomme_v2.groups import HEADS, stated
from tango_core.benchmarks.videomme_v2.letters import harness_letter, score
from tango_core.benchmarks.videomme_v2.prompts import (
    LETTER_ONLY,
    REASON_FIRST,
    REASONING_TOKENS,
    asked,
)
from tango_core.types import Prompt, Question

_METRIC = "videomme_v2_score"
_QWEN3_VL = "Answer with the option letter only."


def render(question: Question) -> Prompt:
    """Question, options and instruction."""
    return Prompt(before="", after=asked(question, LETTER_ONLY))


def render_qwen3_vl(question: Question) -> Prompt:
    """The same with the instruction that lmms-eval has for Qwen3-VL."""
    return Prompt(before="", after=asked(question, _QWEN3_VL))


def render_reasoning(question: Question) -> Prompt:
    """The same with the instruction of the reasoning variant."""
    return Prompt(before="", after=asked(question, REASON_FIRST))


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of a question; groups are made of them later."""
    letter, right = harness_letter(reply), right_letter(record)
    return {
        _METRIC: {
            "video_id": record.video_id,
            "question_id": record.question.id,
            "group_type": record.question.groups["group_type"],
            "group_structure": stated(record.row, "group_structure"),
            **{name: stated(record.row, name) for name in HEADS},
            "pred_answer": letter,
            "answer": right,
            "score": int(letter == right),
        }
    }


def task(_: Record) -> str:
    """The one task of all questions."""
    return "videomme_v2"


def key(record: Record) -> str:
    """What names a question: its id in the release."""
    return record.question.id


def key_in(sample: Sample) -> str | None:
    """The question's id that a sample states."""
    metric = sample.get(_METRIC)
    return str(metric.get("question_id")) if isinstance(metric, dict) else None


PROTOCOL = Protocol("lmms_eval", render, read_choice, harness_score=score, failed_reply=NOT_LOADED)
_VARIANTS = (
    PROTOCOL,
    replace(PROTOCOL, name="lmms_eval_qwen3_vl", render=render_qwen3_vl),
    replace(
        PROTOCOL,
        name="lmms_eval_reasoning",
        render=render_reasoning,
        max_new_tokens=REASONING_TOKENS,
    ),
)
PROTOCOLS = {name: protocol for own in _VARIANTS for name, protocol in in_versions(own).items()}
SAMPLES = LmmsEvalSamples(task=task, target=letter_target, metrics=metrics, key=key, key_in=key_in)
