"""Rows of the answers table, for answered and failed questions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.tokens import Entry
from pipeline.methods import PlannedMethod
from pipeline.rows import Clip, Row
from pipeline.stages.declarations import ANSWER_QUESTIONS
from pipeline.statuses import DAMAGED, is_failed
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.scoring.judge import judge
from tango_core.types import Answer, Question

DIGEST_LENGTH = 16


def frames_digest(clip: Clip, entry: Entry) -> str:
    """Equal exactly for the same frames of the same source: its fingerprint and the frames' times.

    Times stand for the frames' numbers, which the cache does not hold.
    """
    shown = {
        "source": clip.source_fingerprint,
        "clip": clip.bounds,
        "times": entry.video.timestamps.tolist(),
    }
    return digest(canonical_json(shown), DIGEST_LENGTH)


def kept_digest(entry: Entry) -> str:
    """Equal exactly for the same positions of the same token grid; values are not compared.

    Two runs whose vision encoders differ by rounding alone mostly keep the same positions.
    """
    video = entry.video
    kept = hashlib.sha256(repr(tuple(video.grid)).encode())
    kept.update(video.indices.cpu().numpy().astype("<i8").tobytes())
    return kept.hexdigest()[:DIGEST_LENGTH]


def unanswered(
    clip: tuple[str, str], planned: PlannedMethod, question: Question, protocol: Protocol, why: str
) -> Row:
    """The failed row of a question for which no answer was found at the end of a run.

    Args:
        clip: Benchmark and video id.
        planned: Method that should have answered.
        question: What should have been answered.
        protocol: Of the benchmark.
        why: One line.
    """
    facts = {
        "benchmark": clip[0],
        "video_id": clip[1],
        "cell": planned.name,
        "method": planned.method.name,
        "retention": planned.retention,
    }
    return answer_row(facts, question, failure(ANSWER_QUESTIONS.failure), protocol, why)


def failure(status: Any) -> Answer:
    """The answer of a question that was never put."""
    return Answer("", None, status, 0, 0, 0.0, 0.0, 0.0)


def of_damaged(answer: Row, damage: Sequence[str]) -> Row:
    """An answer about a damaged clip; one that failed for another reason stays as it is."""
    if is_failed(answer):
        return answer
    return {**answer, "status": DAMAGED, "error": f"decode: {'; '.join(damage)}"[:2000]}


def facts_of(clip: Clip, planned: PlannedMethod, compress_ms: float | None) -> Row:
    """What all answers of one clip and method have in common."""
    cache = "miss" if planned.cache in clip.missing else "hit"
    return {
        "benchmark": clip.benchmark,
        "video_id": clip.video_id,
        "cell": planned.name,
        "method": planned.method.name,
        "retention": planned.retention,
        "decode_video_ms": clip.decode_video_ms,
        "encode_ms": clip.encode_ms,
        "compress_ms": compress_ms,
        "cache": cache if clip.clip_key else None,
    }


def answer_row(
    facts: Row, question: Question, answer: Answer, protocol: Protocol, error: str | None = None
) -> Row:
    """One row of `rows.ANSWER`; a reply that names none of the options, or no span, is unparsed."""
    ran = answer.prompt_tokens > 0
    read = judge(answer.text if answer.status == "ok" else None, question, protocol.read_choice)
    reply = answer.text if ran else protocol.failed_reply
    return {
        **facts,
        "question_id": question.id,
        "status": "unparsed" if answer.status == "ok" and not read.readable else answer.status,
        "error": error,
        "text": answer.text,
        "choice": read.choice,
        "answer": question.answer,
        "correct": read.correct,
        "score": read.score,
        "answer_text": read.answer_text,
        "choice_text": read.choice_text,
        "reading_rule": read.rule,
        "harness_score": _harness_score(protocol, reply, question, has_failed=error is not None),
        "tokens_with_newlines": answer.visual_tokens if ran else None,
        "clip_text_tokens": answer.clip_text_tokens if ran else None,
        "prompt_tokens": answer.prompt_tokens if ran else None,
        "new_tokens": answer.new_tokens if ran else None,
        "prefill_ms": answer.prefill_ms if ran else None,
        "ttft_ms": answer.ttft_ms if ran else None,
        "decode_ms": answer.decode_ms if ran else None,
        "groups": json.dumps(dict(question.groups), ensure_ascii=False),
    }


def _harness_score(
    protocol: Protocol, reply: str, question: Question, *, has_failed: bool
) -> float | None:
    """What the harness counts; nothing where its rules raise about a question that has failed.

    They may be a user's, and the reason of the failure that they raised before.
    """
    if protocol.harness_score is None:
        return None
    try:
        return protocol.harness_score(reply, question)
    except Exception:
        if has_failed:
            return None
        raise
