"""Answer all questions about a clip, once per method, from the tokens in the cache.

Questions of several clips and methods are batched in the language model: the next clip is taken as
soon as the model has room, and its result is returned when all its questions are answered.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pipeline.cache.derived import derived_for, on_device, serves
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.names import canonical_json, digest, held_by
from pipeline.cache.rows import CacheError, Entry
from pipeline.clips import (
    ANSWER_QUESTIONS,
    COMPRESS_VIDEO,
    DAMAGED,
    Clip,
    questions_of,
    subtitles_of,
)
from pipeline.plan import PlannedMethod
from pipeline.question_groups import QuestionGroup, QuestionReader, groups_of
from pipeline.rows import AnswerRow, Result, result_of
from pipeline.runtime.background import done_ahead
from pipeline.stages.compress import raise_if_other_code, root_of
from pipeline.stages.device_faults import raise_if_poisoned, reason_of, with_second_try
from pipeline.storage.objects import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.benchmarks.scoring.judge import judge
from tango_core.models import load_language_model
from tango_core.models.base import AnswerSession, ClipPrompts, ModelSpec
from tango_core.models.placement import resolve_device
from tango_core.types import Answer, Prompt, Question

# Number of token sets to read before the language model has room for them.
_READ_AHEAD = 4
DIGEST_LENGTH = 16
# Columns that have the names of attributes.
_OF_CLIP = ("benchmark", "video_id", "decode_video_ms", "encode_ms", "encode_tflops")
_OF_READING = ("choice", "correct", "score", "answer_text", "choice_text")
_OF_ANSWER = (
    *("clip_text_tokens", "prompt_tokens", "new_tokens"),
    *("prefill_ms", "ttft_ms", "decode_ms"),
)


@dataclass(eq=False)
class ClipState:
    """State of a clip from the time it is taken until its result is returned.

    Attributes:
        clip: The input row.
        protocol: Builds the prompts and reads the replies.
        requests: Every method with each group of questions that share its token set.
        entries: Cache name and key -> tokens, for the token sets read so far.
        features: The clip's features on the device, until the last method's tokens are computed.
        fault: Storage error; remaining methods fail at once instead of waiting for it again.
        done: The result, once all methods are done.
    """

    clip: Clip
    protocol: Protocol
    requests: list[MethodRequest] = field(default_factory=list)
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    features: ReadFeatures | None = None
    fault: Exception | None = None
    done: Result | None = None

    @property
    def answers(self) -> list[AnswerRow]:
        """Answer rows of all requests that are answered."""
        return [row for request in self.requests for row in request.answers or ()]


@dataclass(eq=False)
class MethodRequest:
    """Questions about a clip that are asked with one method and one token set.

    Attributes:
        work: State of the clip.
        planned: The method.
        group: The token set.
        questions: The questions.
        known: Columns that have the same value in all answer rows, also of failed answers.
        facts: `known`, and the columns of what was read and computed for the request.
        prompts: The protocol's prompts, one per question.
        failure: Status of the answers if the request fails.
        answers: Answer rows; `None` while the answers are missing.
    """

    work: ClipState
    planned: PlannedMethod
    group: QuestionGroup
    questions: list[Question]
    known: AnswerRow
    facts: AnswerRow
    prompts: list[Prompt] = field(default_factory=list)
    failure: str = ANSWER_QUESTIONS.failure
    answers: list[AnswerRow] | None = None

    def failed_rows(self, status: str, reason: str) -> list[AnswerRow]:
        """Rows of failed answers, one per question."""
        answer, protocol = failure(status), self.work.protocol
        return [answer_row(self.known, one, answer, protocol, reason) for one in self.questions]


class LostEntryError(CacheError):
    """A cache entry that the job's plan relies on has been removed or damaged since."""


class AnswerQuestions:
    """Stage that holds the language model and answers every question with every method.

    Args:
        model: Model whose language model is loaded; the weights of its vision tower are not read.
        methods: Methods to answer with.
        caches: Cache name -> cache.
        protocols: Benchmark name -> protocol that builds its prompts and reads its replies.
        features: The job's feature store, if it has one.
        share_prefix: Prefill a clip once for all its questions; `False` when latency is measured.
        num_threads: CPU threads of torch in this process.
        batch_tokens: Maximum number of prompt and reply tokens in one batch. `None` lets the model
            choose; 1 answers one clip and method after the other.
    """

    def __init__(
        self,
        model: ModelSpec,
        methods: Sequence[PlannedMethod],
        caches: Mapping[str, TokenCache],
        protocols: Mapping[str, Protocol],
        features: FeatureStore | None = None,
        share_prefix: bool = True,
        num_threads: int = 1,
        batch_tokens: int | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.methods, self.features = tuple(methods), features
        self.caches, self.protocols = dict(caches), dict(protocols)
        self.device = resolve_device(model.device)
        self.share_prefix = share_prefix
        if features is not None:
            compressors = {one.cache: one.method.compressor for one in self.methods}
            raise_if_other_code(compressors, self.caches)
        self.batch_tokens = batch_tokens
        self.language_model = load_language_model(model)
        # Read ahead only with a GPU: on a CPU the reading thread would slow the model down.
        self.read_ahead = _READ_AHEAD if self.device.type == "cuda" else 0
        self._question_reader = QuestionReader(model)
        self._num_frames = model.frames.num_frames
        self._needs = frozenset[str]().union(*(one.method.compressor.needs for one in self.methods))
        self._session: AnswerSession[ClipPrompts] | None = None
        self._unwanted: deque[tuple[str, str]] = deque()

    def __call__(self, clip: Clip) -> Result:
        """Answer one clip's questions; see `stream`."""
        (done,) = self.stream([clip])
        return done

    def stream(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Answer the questions of many clips; errors become the status of the answers.

        Args:
            clips: The clips. One is taken whenever the language model has room; meanwhile another
                thread reads the token sets of the next ones and tokenizes their prompts.

        Returns:
            A result per clip, in the order of the clips.

        Raises:
            DeviceError: If this process can no longer use its GPU.
        """
        # The next call reuses the session with its device memory and its measured memory needs.
        # An interrupted session still holds requests, so it is discarded.
        session, self._session = self._session, None
        if session is None:
            session = self.language_model.session(self.batch_tokens, raise_if_poisoned)
        pending: dict[int, tuple[ClipPrompts, MethodRequest]] = {}
        states: deque[ClipState] = deque()

        def step() -> None:
            for prompts, found in session.step():
                self._take(pending.pop(id(prompts))[1], found)

        prepared = partial(self._request, session)
        requests = self._requests(clips, states)
        with closing(done_ahead(requests, prepared, self.read_ahead)) as prepared_requests:
            for request, done in prepared_requests:
                try:
                    if (prompts := done.result()) is not None:
                        session.add(prompts)
                        pending[id(prompts)] = prompts, request
                except Exception as error:
                    self._take(request, error)
                while session.full:
                    step()
                yield from _finished(states)
        while session.busy:
            step()
            yield from _finished(states)
        self._tidy()
        self._session = session
        yield from _finished(states)

    def _requests(self, clips: Iterable[Clip], states: deque[ClipState]) -> Iterator[MethodRequest]:
        """Yield every clip with every method; append the state of each clip to `states`."""
        for clip in clips:
            work = ClipState(clip, self.protocols[clip.benchmark])
            states.append(work)
            questions = questions_of(clip)
            for planned in self.methods:
                known = facts_of(clip, planned)
                for group in groups_of(clip, planned.method.compressor):
                    own = [questions[index] for index in group.questions]
                    work.requests.append(MethodRequest(work, planned, group, own, known, known))
            for request in work.requests:
                error = clip.compress_errors.get(request.planned.cache)
                if clip.status != "ok":
                    request.answers = request.failed_rows(clip.status, str(clip.error))
                elif error is not None:
                    request.answers = request.failed_rows(COMPRESS_VIDEO.failure, error)
            self._close_if_done(work)
            yield from work.requests

    def _request(
        self, session: AnswerSession[ClipPrompts], request: MethodRequest
    ) -> ClipPrompts | None:
        """Build the model's request for a clip and a method; `None` if it is answered already.

        Called for one request at a time, possibly in the read-ahead thread.
        """
        self._tidy()
        work, method = request.work, request.planned.method
        if request.answers is not None:
            return None
        if work.fault is not None:
            raise work.fault
        name = request.planned.cache, request.group.key
        if name not in work.entries:
            started = time.perf_counter()
            try:
                self._read(request)
            except Exception as error:
                work.fault = error if store_fault(error, root_of(self.caches)) else None
                raise
            if request.planned is self.methods[-1]:
                work.features = None
            ms = (time.perf_counter() - started) * 1000
            request.facts = replace(request.facts, cache_read_ms=ms)
        entry = work.entries[name]
        if request.group.text is not None:
            del work.entries[name]  # there is one per question
        if request.group.text is not None or request.known.cache != "hit":
            request.facts = replace(request.facts, compress_ms=entry.compress_ms)
        video, bounds = entry.video, work.clip.bounds
        request.prompts += self._prompts(request, entry)
        request.facts = replace(
            request.facts,
            tokens_total=video.num_total,
            tokens_kept=video.num_kept,
            frames_digest=frames_digest(work.clip, entry),
            kept_digest=kept_digest(entry),
        )
        clip_prompts = ClipPrompts(
            video if bounds is None else video.counted_from(bounds[0]),
            request.prompts,
            pruner=method.pruner,
            positions=method.compressor.positions,
            max_new_tokens=work.protocol.max_new_tokens,
            share_prefix=self.share_prefix,
        )
        return session.prepared(clip_prompts)

    def _read(self, request: MethodRequest) -> None:
        """Add the request's token set from its cache, or all of its method from stored features.

        Raises:
            LostEntryError: If an entry that the plan relies on is gone or damaged; damaged entries
                of the clip are removed.
        """
        work, compressor = request.work, request.planned.method.compressor
        key, cache = work.clip.clip_key, request.planned.cache
        stored = work.clip.stored or ()
        try:
            if self.features is None or not serves(compressor, held_by(stored)):
                work.entries[cache, request.group.key] = self.caches[cache].read(request.group.key)
                return
            if work.features is None:
                needs = self._needs & held_by(stored)
                found = self.features.cache.read(key, stored, needs, remove_damaged=True)
                work.features = with_second_try(partial(on_device, found, self.device))
            request.failure = COMPRESS_VIDEO.failure
            groups = [one.group for one in work.requests if one.planned is request.planned]
            self._question_reader.load(groups)
            started = time.perf_counter()
            asked = self._question_reader.asked(compressor, work.features.features, groups)
            make = partial(derived_for, compressor, work.features, asked, started)
            entries = with_second_try(make)
            request.failure = ANSWER_QUESTIONS.failure
            for group, entry in zip(groups, entries, strict=True):
                work.entries[cache, group.key] = entry
        except (CacheError, FileNotFoundError) as error:
            # Remove all damaged token sets now, so that one retry computes all of them.
            for one in work.requests:
                token_sets = self.caches[one.planned.cache]
                try:
                    token_sets.read(one.group.key)
                except FileNotFoundError:
                    continue
                except CacheError:
                    token_sets.discard(one.group.key)
            raise LostEntryError(f"{error}; --resume computes it again") from error

    def _prompts(self, request: MethodRequest, entry: Entry) -> list[Prompt]:
        """The prompts of the questions, with the video's subtitles if the protocol shows them."""
        work = request.work
        subtitles, video = subtitles_of(work.clip), entry.video
        times = tuple(video.timestamps.tolist())
        length_s = video.source.duration_s if video.source else times[-1]
        watched = replace(Watched.of(self._num_frames, length_s, times[-1]), times=times)
        return [work.protocol.prompt(one, subtitles, watched) for one in request.questions]

    def _tidy(self) -> None:
        """Remove the token sets of damaged clips; must not run at the same time as `_request`."""
        while self._unwanted:
            name, key = self._unwanted.popleft()
            with suppress(OSError):  # harmless if it stays: `tango cache gc` removes it
                self.caches[name].discard(key)

    def _take(self, request: MethodRequest, found: Sequence[Answer] | Exception) -> None:
        """Store the answers to one request; here any error becomes the rows of failed answers."""
        work = request.work
        if work.done is not None:
            return
        if not isinstance(found, Exception):
            try:
                request.answers = self._rows(request, found)
            except Exception as error:
                found = error
        if isinstance(found, Exception):
            raise_if_poisoned(found)
            reason, lost = reason_of(found), isinstance(found, LostEntryError)
            fault = store_fault(found, root_of(self.caches))
            # After a storage error the other methods would wait for the same timeout, and a clip
            # with a lost entry is retried with all methods: both end the whole clip.
            if fault or lost:
                for one in work.requests:
                    one.answers = one.failed_rows(ANSWER_QUESTIONS.failure, reason)
                work.done = result_of(work.clip, work.answers, store_fault=fault, lost_entry=lost)
                return
            request.answers = request.failed_rows(request.failure, reason)
        self._close_if_done(work)

    def _rows(self, request: MethodRequest, answers: Sequence[Answer]) -> list[AnswerRow]:
        """Answer rows of one request."""
        rows, protocol = [], request.work.protocol
        for one in zip(request.questions, answers, request.prompts, strict=True):
            question, answer, prompt = one
            row = answer_row(request.facts, question, answer, protocol)
            rows.append(replace(row, prompt_digest=prompt_digest(prompt)))
        return rows

    def _close_if_done(self, work: ClipState) -> None:
        """Build the clip's result and free its tokens if all methods are done."""
        if any(request.answers is None for request in work.requests):
            return
        answers, clip = work.answers, work.clip
        if clip.damage:
            self._unwanted.extend((one.planned.cache, one.group.key) for one in work.requests)
            answers = [of_damaged(answer, clip.damage) for answer in answers]
        work.entries.clear()
        work.features = None
        work.done = result_of(clip, answers)


def _finished(states: deque[ClipState]) -> Iterator[Result]:
    """Remove finished clips from the front of the queue and yield their results."""
    while states and (done := states[0].done) is not None:
        states.popleft()
        yield done


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
    facts = facts_of(Clip(benchmark=clip[0], video_id=clip[1]), planned)
    return answer_row(facts, question, failure(ANSWER_QUESTIONS.failure), protocol, why)


def failure(status: Any) -> Answer:
    """The answer to a question that was not asked because of a failure."""
    return Answer("", None, status, 0, 0, 0.0, 0.0, 0.0)


def of_damaged(answer: AnswerRow, damage: Sequence[str]) -> AnswerRow:
    """Mark an answer about a damaged clip; an answer that failed otherwise is unchanged."""
    if answer.has_failed:
        return answer
    return replace(answer, status=DAMAGED, error=f"decode: {'; '.join(damage)}"[:2000])


def facts_of(clip: Clip, planned: PlannedMethod) -> AnswerRow:
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
        compress_ms=clip.compress_ms.get(planned.cache),
        cache=cache if clip.clip_key else None,
    )


def answer_row(
    facts: AnswerRow,
    question: Question,
    answer: Answer,
    protocol: Protocol,
    error: str | None = None,
) -> AnswerRow:
    """Complete the facts by an answer; a reply without an option or span is `unparsed`.

    The harness's score of a failed question is `None` if its rules raise an error.
    """
    ran = answer.prompt_tokens > 0
    read = judge(answer.text if answer.status == "ok" else None, question, protocol.read_choice)
    harness_score = None
    if protocol.harness_score is not None:
        try:
            reply = answer.text if ran else protocol.failed_reply
            harness_score = protocol.harness_score(reply, question)
        except Exception:  # of user code; it may be the reason why the question has failed
            if error is None:
                raise
    row = replace(
        facts,
        question_id=question.id,
        status="unparsed" if answer.status == "ok" and not read.readable else answer.status,
        error=error,
        text=answer.text,
        answer=question.answer,
        **_taken(read, _OF_READING),
        reading_rule=read.rule,
        harness_score=harness_score,
        groups=json.dumps(dict(question.groups), ensure_ascii=False),
    )
    if not ran:
        return row
    counted = _taken(answer, _OF_ANSWER)
    return replace(row, tokens_with_newlines=answer.visual_tokens, **counted)


def _taken(record: object, names: Sequence[str]) -> dict[str, Any]:
    """Some attributes of a record, for columns of the same names."""
    return {name: getattr(record, name) for name in names}
