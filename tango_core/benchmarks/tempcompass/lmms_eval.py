"""TempCompass in lmms-eval: the prompts, the score, and the logged samples of its four tasks.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/tempcompass`. Where no rule matches it asks a
judge, and counts the reply as wrong if none answers, which is the score here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import (
    LmmsEvalSamples,
    Sample,
    plain,
    written_answer,
)
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.tempcompass import vlmevalkit
from tango_core.benchmarks.tempcompass.reading import read_choice
from tango_core.benchmarks.tempcompass.rules import rated
from tango_core.benchmarks.tempcompass.tasks import (
    CAPTION_MATCHING,
    CAPTIONING,
    MULTI_CHOICE,
    YES_NO,
)
from tango_core.types import Prompt, Question

_TASKS = {
    MULTI_CHOICE: "tempcompass_multi_choice",
    CAPTION_MATCHING: "tempcompass_caption_matching",
    CAPTIONING: "tempcompass_captioning",
    YES_NO: "tempcompass_yes_no",
}
_PLM_BEST = "\nOnly give the best option."
_PLM_ENDINGS = {
    MULTI_CHOICE: _PLM_BEST,
    CAPTION_MATCHING: _PLM_BEST,
    YES_NO: "\nOnly answer yes or no.",
    CAPTIONING: "",
}
_METRIC = "avg_accuracy"


def render(question: Question) -> Prompt:
    """The same text as in VLMEvalKit."""
    return vlmevalkit.render(question)


def render_plm(question: Question) -> Prompt:
    """With the endings that lmms-eval uses for Perception LM."""
    return Prompt(before="", after=question.text + _PLM_ENDINGS[question.groups["task"]])


def score(reply: str, question: Question) -> float | None:
    """What its rules give without a judge; captions, which only the judge rates, have no score."""
    if question.answer is None:
        return None
    return rated(reply, question) or 0.0


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """The metric of all questions and that of the question's dimension, which are one object."""
    question = record.question
    rule = rated(reply, question)
    rated_as = {
        "video_id": record.video_id,
        "question": question.text,
        "gt-answer": target(record),
        "video-llm-prediction": reply,
        "match_success": rule is not None,
        "rating": int(rule or 0),
        "dim": question.groups["dimension"],
    }
    if question.groups["task"] == CAPTIONING:
        del rated_as["match_success"]
        rated_as |= {
            "gt-answer": str(record.row.get("mc_answer") or target(record)),
            "chatgpt-reasoning": None,
            "chatgpt-answer": None,
            "rating": -1,  # what it writes where the judge fails
        }
    return {_METRIC: rated_as, f"{question.groups['dimension']}_accuracy": rated_as}


def task(record: Record) -> str:
    """The task of the question's form."""
    return _TASKS[record.question.groups["task"]]


def target(record: Record) -> str:
    """The right answer as the release writes it."""
    return written_answer(record)


def doc_id(record: Record) -> int:
    """Row in the table of the question's form."""
    return record.number


def key(record: Record) -> str:
    """What names a question: its video, its dimension and its text."""
    groups = record.question.groups
    return f"{record.video_id} {groups['dimension']} {plain(record.question.text)}"


def key_in(sample: Sample) -> str | None:
    """Video, dimension and text that a sample states."""
    metric = sample.get(_METRIC)
    if not isinstance(metric, dict):
        return None
    return f"{metric.get('video_id')} {metric.get('dim')} {plain(metric.get('question'))}"


PROTOCOL = Protocol(
    "lmms_eval",
    render,
    read_choice,
    max_new_tokens=vlmevalkit.MAX_NEW_TOKENS,
    harness_score=score,
    failed_reply=NOT_LOADED,
)
_PLM = replace(PROTOCOL, name="lmms_eval_plm", render=render_plm)
PROTOCOLS = {
    name: protocol for own in (PROTOCOL, _PLM) for name, protocol in in_versions(own).items()
}
SAMPLES = LmmsEvalSamples(
    task=task, target=target, metrics=metrics, doc_id=doc_id, key=key, key_in=key_in
)
