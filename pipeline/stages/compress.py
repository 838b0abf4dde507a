"""Encode a clip once and run every compressor whose cache does not hold it.

With a GPU, or with caches in an object store, token sets are written by background threads while
the next clip is encoded. A clip is returned when all its token sets are written.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from pipeline.cache.derived import finished, on_device, serves
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.names import TOKENS, canonical_json, held_by, signals_parts
from pipeline.cache.rows import INT8, identity_of, rounded
from pipeline.clips import COMPRESS_VIDEO, Clip
from pipeline.errors import DeviceError, WorkerError
from pipeline.question_groups import QuestionReader, groups_of
from pipeline.runtime.background import threads
from pipeline.stages.device_faults import raise_if_poisoned, reason_of, with_second_try
from pipeline.storage.objects import store_fault
from tango_core.compressors.base import Compressor
from tango_core.models import load_encoder
from tango_core.models.base import ModelSpec, VisionEncoder
from tango_core.models.placement import resolve_device
from tango_core.ops.finite import raise_for_values, raise_if_not_finite
from tango_core.types import VideoFrames, VisualFeatures

_WRITERS = 4  # more threads than cores, because they mostly wait for the store
_HERE = threads(0, "")
_NOTHING = _HERE.submit(lambda: None)  # a write that is done


@dataclass(frozen=True)
class ClipFeatures:
    """Features of a clip.

    Attributes:
        features: Tokens and requested signals, on the encoder's device.
        encode_ms: Time of the encoder.
        stored: Parts of the clip that are in the feature store once `writing` is done.
        writing: Pending write to the feature store.
    """

    features: VisualFeatures
    encode_ms: float
    stored: tuple[str, ...] = ()
    writing: Future[None] = _NOTHING


@dataclass
class FeatureSource:
    """Provides the features of clips; loads the encoder when the first clip needs it.

    Attributes:
        load: Function that loads the encoder.
        store: The job's feature store; `None` if it has none.
        device: Device for stored features.
        writers: Threads that write features; by default the calling thread.
    """

    load: Callable[[], VisionEncoder]
    store: FeatureStore | None
    device: torch.device
    writers: Executor = _HERE

    @cached_property
    def encoder(self) -> VisionEncoder:
        """The vision encoder."""
        return with_second_try(self.load)

    def encoded(self, frames: VideoFrames, needs: frozenset[str]) -> ClipFeatures:
        """Encode a clip without storing its features.

        Args:
            frames: Frames of the clip.
            needs: Signals to compute.
        """
        features, ms = self._timed(frames, needs)
        if self.store is not None and self.store.cache.dtype == INT8:
            features, _ = rounded(features)
        return ClipFeatures(features, ms)

    def completed(self, clip: Clip, needs: frozenset[str]) -> ClipFeatures:
        """Read the stored features of a decoded clip, and encode and store the missing ones.

        Args:
            clip: The clip; `stored` and `encode` say what is stored and what is to be encoded.
            needs: Signals that the methods read.

        Raises:
            CacheError: If stored features are damaged; they are removed.
            FileNotFoundError: If stored features have been removed.
        """
        assert self.store is not None
        cache, writes, stored = self.store.cache, self.store.writes, clip.stored or ()
        whole, signals = TOKENS in clip.encode, frozenset(clip.encode) - {TOKENS}
        kept = sorted(signals & self.store.signals) if writes else []
        assert clip.frames is not None
        features, ms = self._timed(clip.frames, signals)
        levels = None
        if whole:
            raise_if_not_finite(features, signals)
            if cache.dtype == INT8:
                features, levels = rounded(features)
        else:
            raise_for_values(features, sorted(signals))
        identity, times = identity_of(vars(clip)), (clip.decode_video_ms or 0.0, ms)
        write = cache.prepared(identity, features, kept, times, levels, signals_alone=not whole)
        writing = self.writers.submit(write) if writes else _NOTHING
        if not whole:
            fresh = {name: getattr(features, name) for name in (*signals, "encoder_flops")}
            found = self.stored(clip.clip_key, stored, needs - signals)
            features = replace(found.features, **fresh)
        parts = (*((TOKENS,) if whole else stored), *signals_parts(kept))
        return ClipFeatures(features, ms, () if whole and not writes else parts, writing)

    def stored(self, key: str, parts: Sequence[str], needs: frozenset[str]) -> ReadFeatures:
        """Read stored tokens and signals of a clip onto the device."""
        assert self.store is not None
        found = self.store.cache.read(key, parts, needs, remove_damaged=True)
        return with_second_try(partial(on_device, found, self.device))

    def _timed(self, frames: VideoFrames, needs: frozenset[str]) -> tuple[VisualFeatures, float]:
        """Encode frames; returns the features and the time in milliseconds."""
        encode = partial(self.encoder.encode, frames, needs)
        started = time.perf_counter()
        features = with_second_try(encode)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return features, (time.perf_counter() - started) * 1000


@dataclass(frozen=True)
class Compressed:
    """A clip whose token sets are computed and may still be being written.

    Attributes:
        clip: The clip without its frames.
        times: Cache name -> milliseconds of the method; `None` if the token set is not stored but
            computed from stored features when needed.
        errors: Cache name -> reason why the method failed.
        writings: Cache name -> pending write of its token set.
        features: Pending write of the clip's features.
    """

    clip: Clip
    times: dict[str, float | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    writings: dict[str, Future[None]] = field(default_factory=dict)
    features: Future[None] = _NOTHING

    @property
    def is_over(self) -> bool:
        """Whether all writes are done."""
        return all(writing.done() for writing in (self.features, *self.writings.values()))


class CompressVideo:
    """Stage that holds the vision encoder and turns decoded clips into cache entries.

    Args:
        model: Model whose encoder is loaded; the weights of its language model are not read.
        compressors: Cache name -> compressor; a row's `missing` lists those to run.
        caches: Cache name -> cache.
        features: The job's feature store, if it has one.
        num_threads: CPU threads of torch in this process.

    Raises:
        WorkerError: If a method's code in this process differs from the driver's.
    """

    def __init__(
        self,
        model: ModelSpec,
        compressors: Mapping[str, Compressor],
        caches: Mapping[str, TokenCache],
        features: FeatureStore | None = None,
        num_threads: int = 1,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.compressors = dict(compressors)
        self.caches = dict(caches)
        raise_if_other_code(self.compressors, self.caches)
        device = resolve_device(model.device)
        # Without a GPU or a store, writing threads would only slow the encoder down.
        waits = device.type == "cuda" or any(c.storage.store for c in self.caches.values())
        self.writers = threads(_WRITERS if waits else 0, "tango-writer")
        self.questions = QuestionReader(model)
        self.source = FeatureSource(partial(load_encoder, model), features, device, self.writers)
        self.source.encoder  # noqa: B018  (load now, because every clip needs it)

    def __call__(self, clip: Clip) -> Clip:
        """Fill the caches for one clip; see `stream`."""
        (done,) = self.stream([clip])
        return done

    def stream(self, clips: Iterable[Clip]) -> Iterator[Clip]:
        """Fill the caches for many clips; a failure becomes the clip's status.

        Args:
            clips: Decoded clips. With background writes a clip is returned after the next one is
                compressed, so that at most the token sets of two clips are in memory.

        Returns:
            The clips in order, without frames, each after all its token sets are written.

        Raises:
            DeviceError: If this process can no longer use its GPU.
        """
        pending: list[Compressed] = []
        try:
            for clip in clips:
                try:
                    done = self._compress(clip) if clip.status == "ok" else Compressed(clip)
                except Exception as error:
                    done = Compressed(self._failed(clip, error))
                pending.append(done)
                while len(pending) > 1 or (pending and pending[0].is_over):
                    yield self._written(pending.pop(0))
        except DeviceError:
            yield from map(self._written, pending)
            raise
        yield from map(self._written, pending)

    def _written(self, done: Compressed) -> Clip:
        """Wait for the writes of a clip; the clip fails if all methods of the job failed."""
        clip = replace(done.clip, frames=None)
        try:
            done.features.result()
            unwritten = each_on_its_own(
                done.writings, lambda name: done.writings[name].result(), root_of(self.caches)
            )
        except Exception as error:
            return self._failed(clip, error)
        times = {name: ms for name, ms in done.times.items() if name not in unwritten}
        errors = {**done.errors, **unwritten}
        if errors and len(errors) == len(self.caches):
            return replace(clip, compress_ms=times).failed_by_methods(errors)
        return replace(clip, compress_ms=times, compress_errors=errors)

    def _failed(self, clip: Clip, error: Exception) -> Clip:
        """Convert an error into the clip's status; here alone errors of clips are handled."""
        raise_if_poisoned(error)
        reason = f"{type(error).__name__}: {error}"
        failed = clip.failed(COMPRESS_VIDEO.failure, reason)
        fault = store_fault(error, root_of(self.caches))
        return replace(failed, store_fault=fault, frames=None)

    def _compress(self, clip: Clip) -> Compressed:
        """Get the features and run all methods; the failure of one does not affect the others.

        Token sets that can be computed from the feature store are not stored.
        """
        # A damaged clip has a separate key, which is in no cache.
        missing = list(self.compressors) if clip.damage else clip.missing
        needs = frozenset[str]().union(*(self.compressors[name].needs for name in missing))
        if clip.damage or self.source.store is None:
            assert clip.frames is not None
            source = self.source.encoded(clip.frames, needs)
        else:
            source = self.source.completed(clip, needs)
        identity, held = identity_of(vars(clip)), held_by(source.stored)
        ms = clip.decode_video_ms or 0.0, source.encode_ms
        times: dict[str, float | None] = {}
        writings: dict[str, Future[None]] = {}

        def compress(name: str) -> None:
            method = self.compressors[name]
            if serves(method, held):
                times[name] = None
                return
            groups = groups_of(clip, method)
            self.questions.load(groups)
            started = time.perf_counter()
            asked = self.questions.asked(method, source.features, groups)
            is_one = len(asked) == 1
            videos = [method.compress(asked[0])] if is_one else method.compress_for(asked)
            entries = finished(videos, ms, started)

            def write() -> None:
                for group, entry in zip(groups, entries, strict=True):
                    self.caches[name].write(replace(identity, key=group.key), entry)

            writings[name] = self.writers.submit(write)
            times[name] = entries[0].compress_ms

        errors = each_on_its_own(missing, compress, root_of(self.caches))
        flops = source.features.encoder_flops
        clip = replace(
            clip,
            encode_ms=source.encode_ms,
            encode_tflops=None if flops is None else flops / 1e12,
            stored=list(source.stored),
            frames=None,
        )
        return Compressed(clip, times, errors, writings, source.writing)


def each_on_its_own(
    names: Iterable[str], work: Callable[[str], None], where: str
) -> dict[str, str]:
    """Call `work` for every method; the failure of one does not affect the others.

    Out of memory, memory is freed and the call is repeated once.

    Args:
        names: Names of methods or of their caches.
        work: Function to call with each name.
        where: Directory or bucket that it writes to, for messages.

    Returns:
        Name -> one-line reason, for the names that failed.

    Raises:
        DeviceError: If this process can no longer use its GPU.
        Exception: Storage errors, which would affect every other name as well.
    """
    found = {}
    for name in names:
        try:
            with_second_try(partial(work, name))
        except Exception as error:  # becomes the reason of this method's failure
            raise_if_poisoned(error)
            if store_fault(error, where):
                raise
            found[name] = reason_of(error)
    return found


def root_of(caches: Mapping[str, TokenCache]) -> str:
    """The directory or bucket of all caches of a job, for messages."""
    return next((c.storage.root.rpartition("/")[0] for c in caches.values()), "the token cache")


def raise_if_other_code(
    compressors: Mapping[str, Compressor], caches: Mapping[str, TokenCache]
) -> None:
    """Refuse to fill a cache if this process has other code of the method than the driver.

    Args:
        compressors: Cache name -> compressor.
        caches: Cache name -> cache, from the driver.

    Raises:
        WorkerError: If the code differs; the message names the host and the method.
    """
    for name, compressor in compressors.items():
        wanted: Mapping[str, Any] = caches[name].settings["compressor"]
        found = json.loads(canonical_json(compressor.identity()))  # as in a manifest
        keys = sorted(found.keys() | wanted.keys())
        if differs := [key for key in keys if found.get(key) != wanted.get(key)]:
            raise WorkerError(
                f"the code of method {wanted['name']!r} on {socket.gethostname()} is not the "
                f"driver's ({', '.join(differs)}): install the same code on every node"
            )
