"""Charades-STA in lmms-eval: the prompts, the score, and the logged samples.

Source: EvolvingLMMs-Lab/lmms-eval, `lmms_eval/tasks/charades_sta` and, for the prompt and reading
of `lmms_eval_timelens`, `lmms_eval/tasks/timelens`. VLMEvalKit has no such data set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tango_core.benchmarks.annotations.harness_files import LmmsEvalSamples, Sample
from tango_core.benchmarks.annotations.records import Record
from tango_core.benchmarks.charades_sta.times import charades_span, timelens_spans
from tango_core.benchmarks.protocols.failures import NOT_LOADED
from tango_core.benchmarks.protocols.plain import read_reply
from tango_core.benchmarks.protocols.protocol import Protocol
from tango_core.benchmarks.protocols.versions import in_versions
from tango_core.benchmarks.scoring.spans import Span, span_iou
from tango_core.types import Prompt, Question

# Group of a question that a later row of the release repeats word for word.
REPEATED = "repeated"

# The misspelt word is the original's.
_TASK = (
    "Please find the visual event described by a sentence in the video, determining its starting "
    "and ending times. The format should be: 'The event happens in the start time - end time'. For "
    "example, The event 'person turn a light on' happens in the 24.3 - 30.4 seonds. Now I will "
    "give you the textual sentence: "
)
_PLEASE = "Please return its start time and end time."
_MAX_NEW_TOKENS = 50
_METRICS = tuple(f"charades_sta_{name}" for name in ("IOU@3", "IOU@5", "IOU@7", "mIOU"))
# Older versions log the same under this name.
_KEYED = (*_METRICS, "submission")


def render(question: Question) -> Prompt:
    """The task, the sentence, and what to return; a sentence's own full stop stays before ours."""
    return Prompt(before="", after=f"{_TASK}{question.text}. {_PLEASE}")


def render_timelens(question: Question) -> Prompt:
    """The words of the task `timelens_charades`."""
    return Prompt(
        before="",
        after=(
            f"Please find the visual event described by the sentence '{question.text}', "
            "determining its starting and ending times. The format should be: 'The event happens "
            "in <start time> - <end time> seconds'."
        ),
    )


def score(reply: str, question: Question) -> float | None:
    """IoU of the span that the task reads, 0 for none; `None` for a row that a later one repeats.

    Results are kept by video, sentence and times there, so that the last of equal rows is left.
    """
    return _score(charades_span(reply), question)


def score_timelens(reply: str, question: Question) -> float | None:
    """The same by the reading of `timelens_charades`."""
    return _score(next(iter(timelens_spans(reply)), None), question)


def _score(span: Span | None, question: Question) -> float | None:
    if question.span is None or REPEATED in question.groups:
        return None
    return 0.0 if span is None else span_iou(span, question.span)


def written_times(record: Record) -> str:
    """Start and end as the task's table has them, as text."""
    value = record.row["timestamp"]
    return value if isinstance(value, str) else str([float(time) for time in value])


def metrics(record: Record, reply: str) -> dict[str, Any]:
    """The reply under its key, once per metric, which lmms-eval computes at the end."""
    return {name: {key(record): reply} for name in _METRICS}


def task(_: Record) -> str:
    """The one task of all questions."""
    return "temporal_grounding_charades"


def key(record: Record) -> str:
    """What names a question: video, sentence and times."""
    return f"{record.row['video']}>>>{record.question.text}>>>{written_times(record)}"


def key_in(sample: Sample) -> str | None:
    """The same as a sample states it."""
    for name in _KEYED:
        stated = sample.get(name)
        if isinstance(stated, dict) and stated:
            return str(next(iter(stated)))
    return None


PROTOCOL = Protocol(
    "lmms_eval",
    render,
    read_reply,
    max_new_tokens=_MAX_NEW_TOKENS,
    harness_score=score,
    failed_reply=NOT_LOADED,
)
_TIMELENS = replace(
    PROTOCOL,
    name="lmms_eval_timelens",
    render=render_timelens,
    harness_score=score_timelens,
)
PROTOCOLS = {
    **in_versions(PROTOCOL),
    **in_versions(_TIMELENS),
    # VLMEvalKit has no such data set: the same words, and no score of a harness.
    "vlmevalkit": replace(PROTOCOL, name="vlmevalkit", harness_score=None, failed_reply=""),
}
SAMPLES = LmmsEvalSamples(task=task, target=written_times, metrics=metrics, key=key, key_in=key_in)
