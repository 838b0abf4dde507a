"""Answer all questions about a clip, once per method, from the tokens in the cache.

Questions of several clips and methods are with the language model at the same time: a clip is taken
as soon as the model has room, and given back when all its answers are there.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

import torch

from pipeline.cache.features import FeatureStore
from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.tokens import TokenCache
from pipeline.methods import PlannedMethod
from pipeline.rows import Row, questions_of, result
from pipeline.stages.answer_requests import Asked, ClipInWork, LostEntryError, Requests
from pipeline.stages.answer_rows import (
    DIGEST_LENGTH,
    answer_row,
    facts_of,
    failure,
    of_damaged,
)
from pipeline.stages.compress import root_of
from pipeline.stages.declarations import ANSWER_QUESTIONS, COMPRESS_VIDEO
from pipeline.stages.device_faults import raise_if_poisoned, reason_of
from pipeline.stages.read_ahead import done_ahead
from pipeline.stages.same_code import raise_if_other_code
from pipeline.storage.faults import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.models import load_language_model
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device
from tango_core.models.session import AnswerSession, ClipPrompts
from tango_core.types import Answer

# Token sets that are read before the language model has room for them; of a clip that had to be
# encoded only the next one, because the one before it would wait for the encoding.
_READ_AHEAD = 4


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
        device = resolve_device(model.device)
        if features is not None:
            compressors = {one.cache: one.method.compressor for one in self.methods}
            raise_if_other_code(compressors, self.caches)
        self.requests = Requests(
            self.methods, caches, model.frames.num_frames, share_prefix, features, device
        )
        self.batch_tokens = batch_tokens
        self.language_model = load_language_model(model)
        # Beside a GPU; on a CPU another thread would only take its time.
        self.read_ahead = _READ_AHEAD if device.type == "cuda" else 0
        self._session: AnswerSession[ClipPrompts] | None = None

    def __call__(self, row: Row) -> Row:
        """Answer one clip's questions; see `stream`."""
        (done,) = self.stream([row])
        return done

    def stream(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Answer the questions of many clips; what goes wrong becomes the status of the answers.

        Args:
            rows: Taken one by one, when the language model has room; token sets of the next ones
                are read meanwhile, and their words cut into tokens, in a thread of its own.

        Returns:
            A `rows.RESULT` per clip, in the order of the rows.

        Raises:
            DeviceError: If this process can use its GPU no more.
        """
        # Its memory on the device, and what it has learnt about that, serve the next call, too.
        # One that is broken off has requests inside and is not put back.
        session, self._session = self._session, None
        if session is None:
            session = self.language_model.session(self.batch_tokens, raise_if_poisoned)
        asked: dict[int, tuple[ClipPrompts, Asked]] = {}
        clips: deque[ClipInWork] = deque()

        def work() -> None:
            for request, found in session.step():
                self._take(asked.pop(id(request))[1], found)

        def prepared(one: Asked) -> ClipPrompts | None:
            request = self._request(one)
            return None if request is None else session.prepared(request)

        jobs = self._asked(rows, clips)
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
                yield from _finished(clips)
        while session.busy:
            work()
            yield from _finished(clips)
        self.requests.tidy()
        self._session = session
        yield from _finished(clips)

    def _asked(self, rows: Iterable[Row], clips: deque[ClipInWork]) -> Iterator[Asked]:
        """Every method of every clip; the clips are appended when they are taken."""
        for row in rows:
            clips.append(clip := self._clip(row))
            compress_ms = json.loads(row["compress_ms"] or "{}")
            for index, planned in enumerate(self.methods):
                yield Asked(clip, index, facts_of(row, planned, compress_ms.get(planned.cache)))

    def _clip(self, row: Row) -> ClipInWork:
        """A clip with nothing answered, or one that failed before."""
        clip = ClipInWork(row, questions_of(row), self.protocols[row["benchmark"]])
        clip.answers = [None] * len(self.methods)
        if row["status"] != "ok":
            for index in range(len(self.methods)):
                self._fail(clip, index, row["status"], row["error"])
        elif not self.methods:
            self._close(clip)
        else:
            errors = json.loads(row.get("compress_errors") or "{}")
            for index, planned in enumerate(self.methods):
                if planned.cache in errors:
                    self._fail(clip, index, COMPRESS_VIDEO.failure, errors[planned.cache])
        return clip

    def _request(self, asked: Asked) -> ClipPrompts | None:
        """See `Requests.request`."""
        return self.requests.request(asked)

    def _take(self, asked: Asked, found: Sequence[Answer] | Exception) -> None:
        """Take what came of some questions: the one place where what a clip provokes is a row."""
        clip = asked.clip
        if clip.done is not None:
            return
        if not isinstance(found, Exception):
            try:
                self._put(clip, asked.index, self._rows(asked, found))
                return
            except Exception as error:
                found = error
        raise_if_poisoned(found)
        reason = reason_of(found)
        fault = store_fault(found, root_of(self.caches))
        lost = isinstance(found, LostEntryError)
        # A fault may take long, and would for every other method; the other is asked again whole.
        if fault or lost:
            for index in range(len(self.methods)):
                clip.answers[index] = self._failed_rows(
                    clip, index, ANSWER_QUESTIONS.failure, reason
                )
            clip.done = result({**clip.row, "store_fault": fault, "lost_entry": lost}, _all(clip))
        else:
            self._fail(clip, asked.index, asked.failure, reason)

    def _rows(self, asked: Asked, answers: Sequence[Answer]) -> list[Row]:
        """The rows of answers."""
        protocol = asked.clip.protocol
        return [
            {
                **answer_row(asked.facts, q, a, protocol),
                "prompt_digest": digest(canonical_json(asdict(prompt)), DIGEST_LENGTH),
            }
            for q, a, prompt in zip(asked.clip.questions, answers, asked.prompts, strict=True)
        ]

    def _fail(self, clip: ClipInWork, index: int, status: str, reason: str) -> None:
        """No question about a clip could be answered with a method."""
        self._put(clip, index, self._failed_rows(clip, index, status, reason))

    def _failed_rows(self, clip: ClipInWork, index: int, status: str, reason: str) -> list[Row]:
        """A failed answer per question."""
        planned, row = self.methods[index], clip.row
        compress_ms = json.loads(row["compress_ms"] or "{}")
        facts = facts_of(row, planned, compress_ms.get(planned.cache))
        return [
            answer_row(facts, question, failure(status), clip.protocol, reason)
            for question in clip.questions
        ]

    def _put(self, clip: ClipInWork, index: int, rows: list[Row]) -> None:
        """Keep the rows of a method; the clip is done with the last of them."""
        clip.answers[index] = rows
        if all(rows is not None for rows in clip.answers):
            self._close(clip)

    def _close(self, clip: ClipInWork) -> None:
        """Nothing is awaited any more: the result, and no tokens in memory."""
        answers = _all(clip)
        if clip.row.get("damage"):
            self.requests.forget(clip)
            answers = [of_damaged(answer, clip.row["damage"]) for answer in answers]
        clip.entries.clear()
        clip.features = None
        clip.done = result(clip.row, answers)


def _room(asked: Asked) -> int:
    """How far to read ahead when this was the last that was taken."""
    return _READ_AHEAD if asked.clip.row["compress_ms"] is None else 1


def _all(clip: ClipInWork) -> list[Row]:
    """The rows of all methods."""
    return [row for rows in clip.answers for row in rows or ()]


def _finished(clips: deque[ClipInWork]) -> Iterator[Row]:
    """Take away the clips in front that are done."""
    while clips and clips[0].done is not None:
        done = clips.popleft().done
        assert done is not None
        yield done
