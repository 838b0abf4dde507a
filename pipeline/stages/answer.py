"""Answer all questions about a clip, once per method, from the tokens in the cache.

Questions of several clips and methods are with the language model at the same time: a clip is taken
as soon as the model has room, and given back when all its answers are there.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

import torch

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.tokens import CacheError, Entry, TokenCache
from pipeline.methods import PlannedMethod
from pipeline.rows import Row, bounds, questions_of, result, subtitles_of
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
from pipeline.stages.device_faults import raise_if_poisoned, reason_of
from pipeline.store_faults import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.models import load_language_model
from tango_core.models.base import ModelSpec
from tango_core.models.session import AnswerSession, ClipPrompts
from tango_core.types import Answer, Prompt, Question


@dataclass(eq=False)
class _ClipInWork:
    """A clip whose questions are with the language model.

    Attributes:
        row: As it came.
        questions: About it.
        protocol: How they are put and read.
        entries: Cache name -> tokens, of those read so far.
        answers: Of every method the rows of its answers; `None` while they are awaited.
        done: The result, once there is nothing to wait for.
    """

    row: Row
    questions: tuple[Question, ...]
    protocol: Protocol
    entries: dict[str, Entry] = field(default_factory=dict)
    answers: list[list[Row] | None] = field(default_factory=list)
    done: Row | None = None


@dataclass(eq=False)
class _Asked:
    """All questions about a clip, put with one method.

    Attributes:
        clip: What they are about.
        index: Of the method.
        facts: What their answers have in common.
        prompts: The protocol's words.
    """

    clip: _ClipInWork
    index: int
    facts: Row
    prompts: list[Prompt]


class AnswerQuestions:
    """Holds the language model; turns small rows into an answer per question and method.

    Args:
        model: Which language model to load; the vision tower's weights are never read.
        methods: Methods to answer with.
        caches: Cache name -> cache.
        protocols: Benchmark name -> how it asks and reads.
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
        share_prefix: bool = True,
        num_threads: int = 1,
        batch_tokens: int | None = None,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.methods = tuple(methods)
        self.caches = dict(caches)
        self.protocols = dict(protocols)
        self.num_frames = model.frames.num_frames
        self.share_prefix = share_prefix
        self.batch_tokens = batch_tokens
        self.language_model = load_language_model(model)
        self._session: AnswerSession[ClipPrompts] | None = None

    def __call__(self, row: Row) -> Row:
        """Answer one clip's questions; see `stream`."""
        (done,) = self.stream([row])
        return done

    def stream(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Answer the questions of many clips; what goes wrong becomes the status of the answers.

        Args:
            rows: Taken one by one, when the language model has room.

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
        asked: dict[int, tuple[ClipPrompts, _Asked]] = {}
        clips: deque[_ClipInWork] = deque()

        def work() -> None:
            for request, found in session.step():
                self._take(asked.pop(id(request))[1], found)

        for row in rows:
            clips.append(clip := self._clip(row))
            for index in range(len(self.methods)):
                request = self._request(clip, index)
                if request is None:
                    continue
                try:
                    session.add(request[0])
                except Exception as error:
                    self._take(request[1], error)
                    continue
                asked[id(request[0])] = request
                while session.full:
                    work()
            yield from _finished(clips)
        while session.busy:
            work()
            yield from _finished(clips)
        self._session = session
        yield from _finished(clips)

    def _clip(self, row: Row) -> _ClipInWork:
        """A clip with nothing answered, or one that failed before."""
        clip = _ClipInWork(row, questions_of(row), self.protocols[row["benchmark"]])
        clip.answers = [None] * len(self.methods)
        if row["status"] != "ok":
            for index in range(len(self.methods)):
                self._fail(clip, index, row["status"], row["error"])
        elif not self.methods:
            self._close(clip)
        return clip

    def _request(self, clip: _ClipInWork, index: int) -> tuple[ClipPrompts, _Asked] | None:
        """All questions about a clip with one method; `None` if they cannot be put."""
        if clip.done is not None:
            return None
        planned, row = self.methods[index], clip.row
        errors = json.loads(row.get("compress_errors") or "{}")
        if planned.cache in errors:
            self._fail(clip, index, COMPRESS_VIDEO.failure, errors[planned.cache])
            return None
        compress_ms = json.loads(row["compress_ms"] or "{}")
        facts = facts_of(row, planned, compress_ms.get(planned.cache))
        asked = _Asked(clip, index, facts, [])
        try:
            if planned.cache not in clip.entries:
                started = time.perf_counter()
                clip.entries[planned.cache] = self._read(planned.cache, row["clip_key"])
                facts["cache_read_ms"] = (time.perf_counter() - started) * 1000
            asked.prompts += self._prompts(clip, clip.entries[planned.cache])
        except Exception as error:
            self._take(asked, error)
            return None
        entry = clip.entries[planned.cache]
        facts["tokens_total"] = entry.video.num_total
        facts["tokens_kept"] = entry.video.num_kept
        facts["frames_digest"] = frames_digest(row, entry)
        facts["kept_digest"] = kept_digest(entry)
        clip_bounds = bounds(row)
        request = ClipPrompts(
            entry.video if clip_bounds is None else entry.video.counted_from(clip_bounds[0]),
            asked.prompts,
            pruner=planned.method.pruner,
            positions=planned.method.compressor.positions,
            max_new_tokens=clip.protocol.max_new_tokens,
            share_prefix=self.share_prefix,
        )
        return request, asked

    def _prompts(self, clip: _ClipInWork, entry: Entry) -> list[Prompt]:
        """The words of all questions, with the video's subtitles if they are to be shown."""
        subtitles, video = subtitles_of(clip.row), entry.video
        times = tuple(video.timestamps.tolist())
        length_s = video.source.duration_s if video.source else times[-1]
        watched = replace(Watched.of(self.num_frames, length_s, times[-1]), times=times)
        return [clip.protocol.prompt(one, subtitles, watched) for one in clip.questions]

    def _read(self, cache: str, key: str) -> Entry:
        """A clip's tokens; a damaged entry is removed, for the next attempt to compute it again."""
        try:
            return self.caches[cache].read(key)
        except CacheError as error:
            self.caches[cache].discard(key)
            raise CacheError(f"{error}; it was removed, --resume computes it again") from error

    def _take(self, asked: _Asked, found: Sequence[Answer] | Exception) -> None:
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
        if fault:  # it may take long to fail, and would for every other method
            for index in range(len(self.methods)):
                clip.answers[index] = self._failed_rows(
                    clip, index, ANSWER_QUESTIONS.failure, reason
                )
            clip.done = result({**clip.row, "store_fault": fault}, _all(clip))
        else:
            self._fail(clip, asked.index, ANSWER_QUESTIONS.failure, reason)

    def _rows(self, asked: _Asked, answers: Sequence[Answer]) -> list[Row]:
        """The rows of answers."""
        protocol = asked.clip.protocol
        return [
            {
                **answer_row(asked.facts, q, a, protocol),
                "prompt_digest": digest(canonical_json(asdict(prompt)), DIGEST_LENGTH),
            }
            for q, a, prompt in zip(asked.clip.questions, answers, asked.prompts, strict=True)
        ]

    def _fail(self, clip: _ClipInWork, index: int, status: str, reason: str) -> None:
        """No question about a clip could be answered with a method."""
        self._put(clip, index, self._failed_rows(clip, index, status, reason))

    def _failed_rows(self, clip: _ClipInWork, index: int, status: str, reason: str) -> list[Row]:
        """A failed answer per question."""
        planned, row = self.methods[index], clip.row
        compress_ms = json.loads(row["compress_ms"] or "{}")
        facts = facts_of(row, planned, compress_ms.get(planned.cache))
        return [
            answer_row(facts, question, failure(status), clip.protocol, reason)
            for question in clip.questions
        ]

    def _put(self, clip: _ClipInWork, index: int, rows: list[Row]) -> None:
        """Keep the rows of a method; the clip is done with the last of them."""
        clip.answers[index] = rows
        if all(rows is not None for rows in clip.answers):
            self._close(clip)

    def _close(self, clip: _ClipInWork) -> None:
        """Nothing is awaited any more: the result, and no tokens in memory."""
        answers = _all(clip)
        if clip.row.get("damage"):
            for cache in clip.entries:
                with suppress(OSError):  # a key that no other clip has; `tango cache gc` finds it
                    self.caches[cache].discard(clip.row["clip_key"])
            answers = [of_damaged(answer, clip.row["damage"]) for answer in answers]
        clip.entries.clear()
        clip.done = result(clip.row, answers)


def _all(clip: _ClipInWork) -> list[Row]:
    """The rows of all methods."""
    return [row for rows in clip.answers for row in rows or ()]


def _finished(clips: deque[_ClipInWork]) -> Iterator[Row]:
    """Take away the clips in front that are done."""
    while clips and clips[0].done is not None:
        done = clips.popleft().done
        assert done is not None
        yield done
