"""Answer all questions about a clip, once per method, from the tokens in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.tokens import CacheError, Entry, TokenCache
from pipeline.methods import PlannedMethod
from pipeline.rows import Row, bounds, option_text, questions_of, result
from pipeline.stages.compress import root_of
from pipeline.stages.declarations import ANSWER_QUESTIONS, COMPRESS_VIDEO, DAMAGED, is_failed
from pipeline.stages.device_faults import raise_if_poisoned, reason_of, with_second_try
from pipeline.store_faults import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.scoring.free_form import matches
from tango_core.models import load_language_model
from tango_core.models.base import ModelSpec
from tango_core.types import Answer, Question

_DIGEST_LENGTH = 16


class AnswerQuestions:
    """Holds the language model; turns a small row into an answer per question and method.

    Args:
        model: Which language model to load; the vision tower's weights are never read.
        methods: Methods to answer with.
        caches: Cache name -> cache.
        protocols: Benchmark name -> how it asks and reads.
        share_prefix: Prefill a clip once for all its questions; `False` when latency is measured.
        num_threads: CPU threads of torch in this process.
    """

    def __init__(
        self,
        model: ModelSpec,
        methods: Sequence[PlannedMethod],
        caches: Mapping[str, TokenCache],
        protocols: Mapping[str, Protocol],
        share_prefix: bool = True,
        num_threads: int = 1,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.methods = tuple(methods)
        self.caches = dict(caches)
        self.protocols = dict(protocols)
        self.share_prefix = share_prefix
        self.language_model = load_language_model(model)

    def __call__(self, row: Row) -> Row:
        """Answer one clip's questions; what goes wrong becomes the status of the answers.

        Raises:
            DeviceError: If this process can use its GPU no more.
        """
        questions = questions_of(row)
        compress_ms = json.loads(row["compress_ms"] or "{}")
        errors = json.loads(row.get("compress_errors") or "{}")
        entries: dict[str, Entry] = {}
        answers: list[Row] = []
        protocol = self.protocols[row["benchmark"]]
        for planned in self.methods:
            facts = _facts(row, planned, compress_ms.get(planned.cache))
            if row["status"] != "ok":
                answers += [
                    _row(facts, q, _failure(row["status"]), protocol, row["error"])
                    for q in questions
                ]
                continue
            if planned.cache in errors:
                failure = _failure(COMPRESS_VIDEO.failure)
                answers += [
                    _row(facts, q, failure, protocol, errors[planned.cache]) for q in questions
                ]
                continue
            try:
                if planned.cache not in entries:
                    started = time.perf_counter()
                    entries[planned.cache] = self._read(planned.cache, row["clip_key"])
                    facts["cache_read_ms"] = (time.perf_counter() - started) * 1000
                entry = entries[planned.cache]
                about = (protocol, planned, entry)
                answers += with_second_try(
                    partial(self._answer, *about, questions, facts, row),
                    # Alone, a question repeats no keys and values of the clip.
                    smaller=partial(self._one_by_one, *about, questions, facts, row),
                )
            except Exception as error:  # the one place where what a clip provokes becomes a row
                raise_if_poisoned(error)
                reason = reason_of(error)
                fault = store_fault(error, root_of(self.caches))
                if fault:  # it may take long to fail, and would for every other method
                    answers = self._unanswered(row, questions, reason)
                    return result({**row, "store_fault": fault}, answers)
                failure = _failure(ANSWER_QUESTIONS.failure)
                answers += [_row(facts, q, failure, protocol, reason) for q in questions]
        if row.get("damage"):
            for cache in entries:
                with suppress(OSError):  # a key that no other clip has; `tango cache gc` finds it
                    self.caches[cache].discard(row["clip_key"])
            answers = [_of_damaged(answer, row["damage"]) for answer in answers]
        return result(row, answers)

    def _one_by_one(
        self,
        protocol: Protocol,
        planned: PlannedMethod,
        entry: Entry,
        questions: Sequence[Question],
        facts: Row,
        clip: Row,
    ) -> list[Row]:
        """As `_answer`, with the memory of a single question."""
        return [
            answer
            for question in questions
            for answer in self._answer(protocol, planned, entry, [question], facts, clip)
        ]

    def _unanswered(self, row: Row, questions: Sequence[Question], reason: str) -> list[Row]:
        """A failed answer per method and question."""
        failure, protocol = _failure(ANSWER_QUESTIONS.failure), self.protocols[row["benchmark"]]
        return [
            _row(_facts(row, planned, None), question, failure, protocol, reason)
            for planned in self.methods
            for question in questions
        ]

    def _read(self, cache: str, key: str) -> Entry:
        """A clip's tokens; a damaged entry is removed, for the next attempt to compute it again."""
        try:
            return self.caches[cache].read(key)
        except CacheError as error:
            self.caches[cache].discard(key)
            raise CacheError(f"{error}; it was removed, --resume computes it again") from error

    def _answer(
        self,
        protocol: Protocol,
        planned: PlannedMethod,
        entry: Entry,
        questions: Sequence[Question],
        facts: Row,
        clip: Row,
    ) -> list[Row]:
        """All questions with one method."""
        prompts = [protocol.render(question) for question in questions]
        replies = self.language_model.answer(
            entry.video,
            prompts,
            pruner=planned.method.pruner,
            positions=planned.method.compressor.positions,
            max_new_tokens=protocol.max_new_tokens,
            share_prefix=self.share_prefix,
        )
        facts = {
            **facts,
            "tokens_total": entry.video.num_total,
            "tokens_kept": entry.video.num_kept,
            "frames_digest": _frames_digest(clip, entry),
        }
        return [
            {
                **_row(facts, q, _read(protocol, q, a), protocol),
                "prompt_digest": digest(canonical_json(asdict(prompt)), _DIGEST_LENGTH),
            }
            for q, a, prompt in zip(questions, replies, prompts, strict=True)
        ]


def _frames_digest(row: Row, entry: Entry) -> str:
    """Equal exactly for the same frames of the same source: its fingerprint and the frames' times.

    Times stand for the frames' numbers, which the cache does not hold.
    """
    shown = {
        "source": row["source_fingerprint"],
        "clip": bounds(row),
        "times": entry.video.timestamps.tolist(),
    }
    return digest(canonical_json(shown), _DIGEST_LENGTH)


def _read(protocol: Protocol, question: Question, answer: Answer) -> Answer:
    """Read the option a reply names; a reply that names none of the options is unparsed."""
    if answer.status != "ok" or not question.choices:
        return answer
    choice = protocol.read_choice(answer.text, question)
    return replace(answer, choice=choice, status="ok" if choice is not None else "unparsed")


def _is_right(question: Question, answer: Answer) -> bool | None:
    """Whether an answer is the right one; `None` if nobody says which is."""
    if question.accepted:
        return matches(answer.text, question)
    return None if question.answer is None else answer.choice == question.answer


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
    return _row(facts, question, _failure(ANSWER_QUESTIONS.failure), protocol, why)


def _failure(status: Any) -> Answer:
    """The answer of a question that was never put."""
    return Answer("", None, status, 0, 0, 0.0, 0.0, 0.0)


def _of_damaged(answer: Row, damage: Sequence[str]) -> Row:
    """An answer about a damaged clip; one that failed for another reason stays as it is."""
    if is_failed(answer):
        return answer
    return {**answer, "status": DAMAGED, "error": f"decode: {'; '.join(damage)}"[:2000]}


def _facts(row: Row, planned: PlannedMethod, compress_ms: float | None) -> Row:
    """What all answers of one clip and method have in common."""
    cache = "miss" if planned.cache in row["missing"] else "hit"
    return {
        "benchmark": row["benchmark"],
        "video_id": row["video_id"],
        "cell": planned.name,
        "method": planned.method.name,
        "retention": planned.retention,
        "decode_video_ms": row["decode_video_ms"],
        "encode_ms": row["encode_ms"],
        "compress_ms": compress_ms,
        "cache": cache if row["clip_key"] else None,
    }


def _row(
    facts: Row, question: Question, answer: Answer, protocol: Protocol, error: str | None = None
) -> Row:
    """One row of `rows.ANSWER`."""
    ran = answer.prompt_tokens > 0
    score = protocol.harness_score
    return {
        **facts,
        "question_id": question.id,
        "status": answer.status,
        "error": error,
        "text": answer.text,
        "choice": answer.choice,
        "answer": question.answer,
        "correct": _is_right(question, answer),
        "answer_text": option_text(question, question.answer),
        "choice_text": option_text(question, answer.choice),
        "harness_score": score(answer.text if ran else protocol.failed_reply, question)
        if score
        else None,
        "tokens_with_newlines": answer.visual_tokens if ran else None,
        "prompt_tokens": answer.prompt_tokens if ran else None,
        "new_tokens": answer.new_tokens if ran else None,
        "prefill_ms": answer.prefill_ms if ran else None,
        "ttft_ms": answer.ttft_ms if ran else None,
        "decode_ms": answer.decode_ms if ran else None,
        "groups": json.dumps(dict(question.groups), ensure_ascii=False),
    }
