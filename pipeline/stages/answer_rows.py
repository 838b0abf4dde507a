"""Build rows of the answers table for answered and failed questions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.cache.derived import serves
from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.names import held_by
from pipeline.cache.rows import Entry
from pipeline.clips import ANSWER_QUESTIONS, DAMAGED, Clip
from pipeline.plan import PlannedMethod
from pipeline.rows import AnswerRow
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.scoring.judge import judge
from tango_core.types import Answer, Prompt, Question

DIGEST_LENGTH = 16
# Columns that have the names of attributes.
_OF_CLIP = ("benchmark", "video_id", "decode_video_ms", "encode_ms", "encode_tflops")
_OF_READING = ("choice", "correct", "score", "answer_text", "choice_text")
_OF_ANSWER = (
    *("clip_text_tokens", "prompt_tokens", "new_tokens"),
    *("prefill_ms", "ttft_ms", "decode_ms"),
)


def prompt_digest(prompt: Prompt) -> str:
    """Digest of a prompt's text before and after the clip."""
    return digest(canonical_json(asdict(prompt)), DIGEST_LENGTH)


def frames_digest(clip: Clip, entry: Entry) -> str:
    """Digest of the source's fingerprint, the clip's bounds and the frames' timestamps.

    Timestamps are used because the cache does not hold frame numbers.
    """
    shown = {
        "source": clip.source_fingerprint,
        "clip": clip.bounds,
        "times": entry.video.timestamps.tolist(),
    }
    return digest(canonical_json(shown), DIGEST_LENGTH)


def kept_digest(entry: Entry) -> str:
    """Digest of the token grid and the kept positions.

    Token values are not included, because vision encoders that differ only by rounding mostly keep
    the same positions.
    """
    video = entry.video
    kept = hashlib.sha256(repr(tuple(video.grid)).encode())
    kept.update(video.indices.cpu().numpy().astype("<i8").tobytes())
    return kept.hexdigest()[:DIGEST_LENGTH]


def unanswered(
    clip: tuple[str, str], planned: PlannedMethod, question: Question, protocol: Protocol, why: str
) -> AnswerRow:
    """The failed row of a question for which no answer was found at the end of a run.

    Args:
        clip: Benchmark and video id.
        planned: The method.
        question: The question.
        protocol: Protocol of the benchmark.
        why: One-line reason.
    """
    facts = facts_of(Clip(benchmark=clip[0], video_id=clip[1]), planned, None)
    return answer_row(facts, question, failure(ANSWER_QUESTIONS.failure), protocol, why)


def failure(status: Any) -> Answer:
    """The answer to a question that was not asked because of a failure."""
    return Answer("", None, status, 0, 0, 0.0, 0.0, 0.0)


def of_damaged(answer: AnswerRow, damage: Sequence[str]) -> AnswerRow:
    """Mark an answer about a damaged clip; an answer that failed otherwise is unchanged."""
    if answer.has_failed:
        return answer
    return replace(answer, status=DAMAGED, error=f"decode: {'; '.join(damage)}"[:2000])


def facts_of(clip: Clip, planned: PlannedMethod, compress_ms: float | None) -> AnswerRow:
    """The columns that are equal in all answers of one clip and method."""
    if planned.cache in clip.missing:
        cache = "miss"
    else:  # token sets that can be computed from stored features are never read from a cache
        stored = held_by(clip.stored or ())
        cache = "derived" if serves(planned.method.compressor, stored) else "hit"
    return AnswerRow(
        **_taken(clip, _OF_CLIP),
        cell=planned.name,
        method=planned.method.name,
        retention=planned.retention,
        compress_ms=compress_ms,
        cache=cache if clip.clip_key else None,
    )


def answer_row(
    facts: AnswerRow,
    question: Question,
    answer: Answer,
    protocol: Protocol,
    error: str | None = None,
) -> AnswerRow:
    """Complete the facts by an answer; a reply without an option or span is `unparsed`."""
    ran = answer.prompt_tokens > 0
    read = judge(answer.text if answer.status == "ok" else None, question, protocol.read_choice)
    reply = answer.text if ran else protocol.failed_reply
    row = replace(
        facts,
        question_id=question.id,
        status="unparsed" if answer.status == "ok" and not read.readable else answer.status,
        error=error,
        text=answer.text,
        answer=question.answer,
        **_taken(read, _OF_READING),
        reading_rule=read.rule,
        harness_score=_harness_score(protocol, reply, question, has_failed=error is not None),
        groups=json.dumps(dict(question.groups), ensure_ascii=False),
    )
    if not ran:
        return row
    counted = _taken(answer, _OF_ANSWER)
    return replace(row, tokens_with_newlines=answer.visual_tokens, **counted)


def _taken(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Some attributes of a record, for columns of the same names."""
    return {name: getattr(record, name) for name in names}


def _harness_score(
    protocol: Protocol, reply: str, question: Question, *, has_failed: bool
) -> float | None:
    """The harness's score; `None` if its rules raise an error for a failed question.

    The rules may be user code whose error was the reason of the failure.
    """
    if protocol.harness_score is None:
        return None
    try:
        return protocol.harness_score(reply, question)
    except Exception:
        if has_failed:
            return None
        raise
