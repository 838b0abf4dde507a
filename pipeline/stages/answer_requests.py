"""What the language model is asked about a clip with one method: tokens from a cache, and words."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from pipeline.cache.derived import derived, on_device, serves
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.names import held_by
from pipeline.cache.rows import CacheError, Entry
from pipeline.cache.tokens import TokenCache
from pipeline.methods import PlannedMethod
from pipeline.rows import Row, bounds, subtitles_of
from pipeline.stages.answer_rows import frames_digest, kept_digest
from pipeline.stages.compress import root_of
from pipeline.stages.declarations import ANSWER_QUESTIONS, COMPRESS_VIDEO
from pipeline.stages.device_faults import with_second_try
from pipeline.storage.faults import store_fault
from tango_core.benchmarks.base import Protocol
from tango_core.benchmarks.protocols.subtitles import Watched
from tango_core.models.session import ClipPrompts
from tango_core.types import Prompt, Question


@dataclass(eq=False)
class ClipInWork:
    """A clip whose questions are with the language model, or will be.

    Attributes:
        row: As it came.
        questions: About it.
        protocol: How they are put and read.
        entries: Cache name -> tokens, of those read so far.
        features: Of the clip, on the device, until the last method has been asked.
        answers: Of every method the rows of its answers; `None` while they are awaited.
        fault: Of the store, which would only take long for the other methods.
        done: The result, once there is nothing to wait for.
    """

    row: Row
    questions: tuple[Question, ...]
    protocol: Protocol
    entries: dict[str, Entry] = field(default_factory=dict)
    features: ReadFeatures | None = None
    answers: list[list[Row] | None] = field(default_factory=list)
    fault: Exception | None = None
    done: Row | None = None


@dataclass(eq=False)
class Asked:
    """All questions about a clip, put with one method.

    Attributes:
        clip: What they are about.
        index: Of the method.
        facts: What their answers have in common.
        prompts: The protocol's words.
        failure: Status of the answers if it fails.
    """

    clip: ClipInWork
    index: int
    facts: Row
    prompts: list[Prompt] = field(default_factory=list)
    failure: str = ANSWER_QUESTIONS.failure


class LostEntryError(CacheError):
    """What a job counted on when it was planned is not in the caches any more."""


class Requests:
    """Makes the requests, one at a time; it and its caches may be in a thread of their own.

    Args:
        methods: Methods to answer with.
        caches: Cache name -> cache.
        num_frames: That the model samples.
        share_prefix: Of every request.
        features: The job's feature store, if it has one.
        device: Where methods compute the token sets that are not stored.
    """

    def __init__(
        self,
        methods: Sequence[PlannedMethod],
        caches: Mapping[str, TokenCache],
        num_frames: int,
        share_prefix: bool,
        features: FeatureStore | None,
        device: torch.device,
    ) -> None:
        self._methods = methods
        self._caches = caches
        self._features = features
        self._device = device
        self._num_frames = num_frames
        self._share_prefix = share_prefix
        self._needs = frozenset[str]().union(*(one.method.compressor.needs for one in methods))
        self._unwanted: deque[tuple[str, str]] = deque()

    def request(self, asked: Asked) -> ClipPrompts | None:
        """All questions about a clip with one method; `None` if its answers are there already."""
        self.tidy()
        clip, planned = asked.clip, self._methods[asked.index]
        if clip.answers[asked.index] is not None:
            return None
        if clip.fault is not None:
            raise clip.fault
        if planned.cache not in clip.entries:
            started = time.perf_counter()
            try:
                clip.entries[planned.cache] = self._entry(asked, planned)
            except Exception as error:
                clip.fault = error if store_fault(error, root_of(self._caches)) else None
                raise
            if planned is self._methods[-1]:
                clip.features = None
            asked.facts["cache_read_ms"] = (time.perf_counter() - started) * 1000
        entry = clip.entries[planned.cache]
        asked.prompts += self._prompts(clip, entry)
        asked.facts["tokens_total"] = entry.video.num_total
        asked.facts["tokens_kept"] = entry.video.num_kept
        asked.facts["frames_digest"] = frames_digest(clip.row, entry)
        asked.facts["kept_digest"] = kept_digest(entry)
        clip_bounds = bounds(clip.row)
        return ClipPrompts(
            entry.video if clip_bounds is None else entry.video.counted_from(clip_bounds[0]),
            asked.prompts,
            pruner=planned.method.pruner,
            positions=planned.method.compressor.positions,
            max_new_tokens=clip.protocol.max_new_tokens,
            share_prefix=self._share_prefix,
        )

    def _entry(self, asked: Asked, planned: PlannedMethod) -> Entry:
        """The clip's tokens: computed from its stored features, or read.

        Raises:
            LostEntryError: If what the plan counted on has gone or is damaged; that is removed.
        """
        clip, compressor = asked.clip, planned.method.compressor
        key, stored = clip.row["clip_key"], clip.row["stored"] or ()
        try:
            if self._features is not None and serves(compressor, held_by(stored)):
                if clip.features is None:
                    needs = self._needs & held_by(stored)
                    read = self._features.cache.read
                    found = read(key, stored, needs, remove_damaged=True)
                    clip.features = with_second_try(partial(on_device, found, self._device))
                asked.failure = COMPRESS_VIDEO.failure
                entry = with_second_try(partial(derived, compressor, clip.features))
                asked.failure = ANSWER_QUESTIONS.failure
                asked.facts["compress_ms"] = entry.compress_ms
                return entry
            return self._caches[planned.cache].read(key)
        except (CacheError, FileNotFoundError) as error:
            self._discard_damaged(key)
            raise LostEntryError(f"{error}; --resume computes it again") from error

    def _discard_damaged(self, key: str) -> None:
        """Make every damaged token set of a clip a miss, so that all are computed in one round."""
        for cache in self._caches.values():
            try:
                cache.read(key)
            except FileNotFoundError:
                continue
            except CacheError:
                cache.discard(key)

    def forget(self, clip: ClipInWork) -> None:
        """Let `tidy` remove what was read of a damaged clip."""
        self._unwanted.extend((name, clip.row["clip_key"]) for name in list(clip.entries))

    def tidy(self) -> None:
        """Remove what is to be forgotten; not beside `request`."""
        while self._unwanted:
            name, key = self._unwanted.popleft()
            with suppress(OSError):  # a key that no other clip has; `tango cache gc` finds it
                self._caches[name].discard(key)

    def _prompts(self, clip: ClipInWork, entry: Entry) -> list[Prompt]:
        """The words of all questions, with the video's subtitles if they are to be shown."""
        subtitles, video = subtitles_of(clip.row), entry.video
        times = tuple(video.timestamps.tolist())
        length_s = video.source.duration_s if video.source else times[-1]
        watched = replace(Watched.of(self._num_frames, length_s, times[-1]), times=times)
        return [clip.protocol.prompt(one, subtitles, watched) for one in clip.questions]
