"""Answer all questions about a clip, once per method, from the tokens in the cache.

Questions of several clips and methods are with the language model at the same time: a clip is taken
as soon as the model has room, and given back when all its answers are there.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch

from pipeline.cache.derived import derived, on_device, serves
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.names import held_by
from pipeline.cache.rows import CacheError, Entry
from pipeline.cache.tokens import TokenCache
from pipeline.methods import PlannedMethod
from pipeline.rows import Clip, Result, Row, questions_of, result_of, subtitles_of
from pipeline.stages.answer_rows import (
    DIGEST_LENGTH,
    answer_row,
    facts_of,
    failure,
    frames_digest,
    kept_digest,
    of_damaged,
)
from pipeline.stages.compress import root_of
from pipeline.stages.declarations import ANSWER_QUESTIONS, COMPRESS_VIDEO
from pipeline.stages.device_faults import raise_if_poisoned, reason_of, with_second_try
from pipeline.stages.same_code import raise_if_other_code
from pipeline.stages.threads import done_ahead
from pipeline.storage.faults import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.models import load_language_model
from tango_core.models.base import AnswerSession, ClipPrompts, ModelSpec
from tango_core.models.placement import resolve_device
from tango_core.types import Answer, Prompt, Question

# Token sets that are read before the language model has room for them; of a clip that had to be
# encoded only the next one, because the one before it would wait for the encoding.
_READ_AHEAD = 4


@dataclass(eq=False)
class ClipInWork:
    """A clip whose questions are with the language model, or will be.

    Attributes:
        clip: As it came.
        questions: About it.
        protocol: How they are put and read.
        times: Cache name -> milliseconds of its method.
        answers: Of every method the rows of its answers; `None` while they are awaited.
        entries: Cache name -> tokens, of those read so far.
        features: Of the clip, on the device, until the last method has been asked.
        fault: Of the store, which would only take long for the other methods.
        done: The result, once there is nothing to wait for.
    """

    clip: Clip
    questions: tuple[Question, ...]
    protocol: Protocol
    times: Mapping[str, float | None]
    answers: list[list[Row] | None]
    entries: dict[str, Entry] = field(default_factory=dict)
    features: ReadFeatures | None = None
    fault: Exception | None = None
    done: Result | None = None


@dataclass(eq=False)
class Asked:
    """All questions about a clip, put with one method.

    Attributes:
        work: The clip that they are about.
        index: Of the method.
        facts: What their answers have in common.
        prompts: The protocol's words.
        failure: Status of the answers if it fails.
    """

    work: ClipInWork
    index: int
    facts: Row
    prompts: list[Prompt] = field(default_factory=list)
    failure: str = ANSWER_QUESTIONS.failure


class LostEntryError(CacheError):
    """What a job counted on when it was planned is not in the caches any more."""


class AnswerQuestions:
    """Holds the language model; turns small rows into an answer per question and method.

    Args:
        model: Which language model to load; the vision tower's weights are never read.
        methods: Methods to answer with.
        caches: Cache name -> cache.
        protocols: Benchmark name -> how it asks and reads.
        features: The job's feature store, if it has one.
        share_prefix: Prefill a clip once for all its questions; `False` when latency is measured.
        num_threads: CPU threads of torch in this process.
        batch_tokens: Tokens of prompts and replies that are worked on at once; `None` is the
            model's own choice, 1 answers one clip and method after the other.
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
        self.methods = tuple(methods)
        self.caches = dict(caches)
        self.protocols = dict(protocols)
        self.features = features
        self.device = resolve_device(model.device)
        self.share_prefix = share_prefix
        if features is not None:
            compressors = {one.cache: one.method.compressor for one in self.methods}
            raise_if_other_code(compressors, self.caches)
        self.batch_tokens = batch_tokens
        self.language_model = load_language_model(model)
        # Beside a GPU; on a CPU another thread would only take its time.
        self.read_ahead = _READ_AHEAD if self.device.type == "cuda" else 0
        self._num_frames = model.frames.num_frames
        self._needs = frozenset[str]().union(*(one.method.compressor.needs for one in self.methods))
        self._session: AnswerSession[ClipPrompts] | None = None
        self._unwanted: deque[tuple[str, str]] = deque()

    def __call__(self, clip: Clip) -> Result:
        """Answer one clip's questions; see `stream`."""
        (done,) = self.stream([clip])
        return done

    def stream(self, clips: Iterable[Clip]) -> Iterator[Result]:
        """Answer the questions of many clips; what goes wrong becomes the status of the answers.

        Args:
            clips: Taken one by one, when the language model has room; token sets of the next ones
                are read meanwhile, and their words cut into tokens, in a thread of its own.

        Returns:
            A result per clip, in the order of the clips.

        Raises:
            DeviceError: If this process can use its GPU no more.
        """
        # Its memory on the device, and what it has learnt about that, serve the next call, too.
        # One that is broken off has requests inside and is not put back.
        session, self._session = self._session, None
        if session is None:
            session = self.language_model.session(self.batch_tokens, raise_if_poisoned)
        asked: dict[int, tuple[ClipPrompts, Asked]] = {}
        in_work: deque[ClipInWork] = deque()

        def work() -> None:
            for request, found in session.step():
                self._take(asked.pop(id(request))[1], found)

        prepared = partial(self._request, session)
        jobs = self._asked(clips, in_work)
        with closing(done_ahead(jobs, prepared, self.read_ahead, _room)) as coming:
            for one, request in coming:
                if isinstance(request, ClipPrompts):
                    try:
                        session.add(request)
                        asked[id(request)] = request, one
                    except Exception as error:
                        self._take(one, error)
                elif request is not None:
                    self._take(one, request)
                while session.full:
                    work()
                yield from _finished(in_work)
        while session.busy:
            work()
            yield from _finished(in_work)
        self._tidy()
        self._session = session
        yield from _finished(in_work)

    def _asked(self, clips: Iterable[Clip], in_work: deque[ClipInWork]) -> Iterator[Asked]:
        """Every method of every clip; the clips are appended when they are taken."""
        for clip in clips:
            work = ClipInWork(
                clip,
                questions_of(clip),
                self.protocols[clip.benchmark],
                json.loads(clip.compress_ms or "{}"),
                [None] * len(self.methods),
            )
            in_work.append(work)
            if not self.methods:
                self._close(work)
            errors = json.loads(clip.compress_errors or "{}")
            for index, planned in enumerate(self.methods):
                if clip.status != "ok":
                    self._fail(work, index, clip.status, str(clip.error))
                elif planned.cache in errors:
                    self._fail(work, index, COMPRESS_VIDEO.failure, errors[planned.cache])
                yield Asked(work, index, facts_of(clip, planned, work.times.get(planned.cache)))

    def _request(self, session: AnswerSession[ClipPrompts], asked: Asked) -> ClipPrompts | None:
        """All questions about a clip with one method; `None` if its answers are there already.

        One at a time; it and the caches may be in a thread of their own.
        """
        self._tidy()
        work, planned = asked.work, self.methods[asked.index]
        if work.answers[asked.index] is not None:
            return None
        if work.fault is not None:
            raise work.fault
        if planned.cache not in work.entries:
            started = time.perf_counter()
            try:
                work.entries[planned.cache] = self._entry(asked, planned)
            except Exception as error:
                work.fault = error if store_fault(error, root_of(self.caches)) else None
                raise
            if planned is self.methods[-1]:
                work.features = None
            asked.facts["cache_read_ms"] = (time.perf_counter() - started) * 1000
        entry = work.entries[planned.cache]
        video, bounds = entry.video, work.clip.bounds
        asked.prompts += self._prompts(work, entry)
        asked.facts |= {
            "tokens_total": video.num_total,
            "tokens_kept": video.num_kept,
            "frames_digest": frames_digest(work.clip, entry),
            "kept_digest": kept_digest(entry),
        }
        request = ClipPrompts(
            video if bounds is None else video.counted_from(bounds[0]),
            asked.prompts,
            pruner=planned.method.pruner,
            positions=planned.method.compressor.positions,
            max_new_tokens=work.protocol.max_new_tokens,
            share_prefix=self.share_prefix,
        )
        return session.prepared(request)

    def _entry(self, asked: Asked, planned: PlannedMethod) -> Entry:
        """The clip's tokens: computed from its stored features, or read.

        Raises:
            LostEntryError: If what the plan counted on has gone or is damaged; that is removed.
        """
        work, compressor = asked.work, planned.method.compressor
        key, stored = work.clip.clip_key, work.clip.stored or ()
        try:
            if self.features is None or not serves(compressor, held_by(stored)):
                return self.caches[planned.cache].read(key)
            if work.features is None:
                needs = self._needs & held_by(stored)
                found = self.features.cache.read(key, stored, needs, remove_damaged=True)
                work.features = with_second_try(partial(on_device, found, self.device))
            asked.failure = COMPRESS_VIDEO.failure
            entry = with_second_try(partial(derived, compressor, work.features))
            asked.failure = ANSWER_QUESTIONS.failure
            asked.facts["compress_ms"] = entry.compress_ms
            return entry
        except (CacheError, FileNotFoundError) as error:
            # Every damaged token set becomes a miss, so that all are computed in one round.
            for cache in self.caches.values():
                try:
                    cache.read(key)
                except FileNotFoundError:
                    continue
                except CacheError:
                    cache.discard(key)
            raise LostEntryError(f"{error}; --resume computes it again") from error

    def _prompts(self, work: ClipInWork, entry: Entry) -> list[Prompt]:
        """The words of all questions, with the video's subtitles if they are to be shown."""
        subtitles, video = subtitles_of(work.clip), entry.video
        times = tuple(video.timestamps.tolist())
        length_s = video.source.duration_s if video.source else times[-1]
        watched = replace(Watched.of(self._num_frames, length_s, times[-1]), times=times)
        return [work.protocol.prompt(one, subtitles, watched) for one in work.questions]

    def _tidy(self) -> None:
        """Remove what was read of damaged clips; not beside `_request`."""
        while self._unwanted:
            name, key = self._unwanted.popleft()
            with suppress(OSError):  # a key that no other clip has; `tango cache gc` finds it
                self.caches[name].discard(key)

    def _take(self, asked: Asked, found: Sequence[Answer] | Exception) -> None:
        """Take what came of some questions: the one place where what a clip provokes is a row."""
        work = asked.work
        if work.done is not None:
            return
        if not isinstance(found, Exception):
            try:
                self._put(work, asked.index, self._rows(asked, found))
                return
            except Exception as error:
                found = error
        raise_if_poisoned(found)
        reason = reason_of(found)
        fault = store_fault(found, root_of(self.caches))
        lost = isinstance(found, LostEntryError)
        # A fault may take long, and would for every other method; the other is asked again whole.
        if fault or lost:
            status = ANSWER_QUESTIONS.failure
            every = range(len(self.methods))
            work.answers = [self._failed_rows(work, index, status, reason) for index in every]
            work.done = result_of(work.clip, _all(work), store_fault=fault, lost_entry=lost)
        else:
            self._fail(work, asked.index, asked.failure, reason)

    def _rows(self, asked: Asked, answers: Sequence[Answer]) -> list[Row]:
        """The rows of answers."""
        protocol = asked.work.protocol
        return [
            {
                **answer_row(asked.facts, q, a, protocol),
                "prompt_digest": digest(canonical_json(asdict(prompt)), DIGEST_LENGTH),
            }
            for q, a, prompt in zip(asked.work.questions, answers, asked.prompts, strict=True)
        ]

    def _fail(self, work: ClipInWork, index: int, status: str, reason: str) -> None:
        """No question about a clip could be answered with a method."""
        self._put(work, index, self._failed_rows(work, index, status, reason))

    def _failed_rows(self, work: ClipInWork, index: int, status: str, reason: str) -> list[Row]:
        """A failed answer per question."""
        planned = self.methods[index]
        facts = facts_of(work.clip, planned, work.times.get(planned.cache))
        return [
            answer_row(facts, question, failure(status), work.protocol, reason)
            for question in work.questions
        ]

    def _put(self, work: ClipInWork, index: int, rows: list[Row]) -> None:
        """Keep the rows of a method; the clip is done with the last of them."""
        work.answers[index] = rows
        if all(rows is not None for rows in work.answers):
            self._close(work)

    def _close(self, work: ClipInWork) -> None:
        """Nothing is awaited any more: the result, and no tokens in memory."""
        answers, clip = _all(work), work.clip
        if clip.damage:
            self._unwanted.extend((name, clip.clip_key) for name in list(work.entries))
            answers = [of_damaged(answer, clip.damage) for answer in answers]
        work.entries.clear()
        work.features = None
        work.done = result_of(clip, answers)


def _room(asked: Asked) -> int:
    """How far to read ahead when this was the last that was taken."""
    return _READ_AHEAD if asked.work.clip.compress_ms is None else 1


def _all(work: ClipInWork) -> list[Row]:
    """The rows of all methods."""
    return [row for rows in work.answers for row in rows or ()]


def _finished(in_work: deque[ClipInWork]) -> Iterator[Result]:
    """Take away the clips in front that are done."""
    while in_work and (done := in_work[0].done) is not None:
        in_work.popleft()
        yield done
