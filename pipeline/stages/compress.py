"""Encode a clip once and run every compressor whose cache does not hold it.

With a GPU, or with caches in an object store, token sets are written by background threads while
the next clip is encoded. A clip is returned when all its token sets are written.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from pipeline.cache.derived import finished, serves
from pipeline.cache.directory import TokenCache
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.fingerprint import canonical_json
from pipeline.cache.names import held_by
from pipeline.cache.rows import CacheError, Entry, identity_of
from pipeline.clips import COMPRESS_VIDEO, Clip
from pipeline.errors import DeviceError, WorkerError
from pipeline.question_groups import QuestionGroup, QuestionReader, groups_of
from pipeline.rows import source_of
from pipeline.stages.clip_features import FeatureSource
from pipeline.stages.device_faults import raise_if_poisoned, reason_of
from pipeline.stages.threads import Writers
from pipeline.storage.faults import store_fault
from tango_core.compressors.base import Compressor
from tango_core.models import load_encoder
from tango_core.models.base import ModelSpec
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.models.placement import resolve_device
from tango_core.types import VideoFrames

_WRITERS = 4  # more threads than cores, because they mostly wait for the store


@dataclass(frozen=True)
class Compressed:
    """A clip whose token sets are computed and may still be being written.

    Attributes:
        clip: The clip without its frames.
        times: Cache name -> milliseconds of the method; `None` if the token set is not stored but
            computed from stored features when needed.
        errors: Cache name -> reason why the method failed.
        writings: Cache name -> pending write of its token set.
        features: Pending write of the clip's features; `None` for none.
    """

    clip: Clip
    times: dict[str, float | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    writings: dict[str, Future[None]] = field(default_factory=dict)
    features: Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether all writes are done."""
        writings = [*self.writings.values(), *([self.features] if self.features else [])]
        return all(writing.done() for writing in writings)


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
        self.writers = Writers(_WRITERS if waits else 0)
        self.questions = QuestionReader(model)
        self.source = FeatureSource(partial(load_encoder, model), features, device, self.writers)
        self.source.encoder  # noqa: B018  (load now, because every clip needs it)

    def __call__(self, clip: Clip) -> Clip:
        """Fill the caches for one clip; see `stream`."""
        if clip.status != "ok":
            return clip.without_frames()
        try:
            return self._written(self._compress(clip))
        except Exception as error:
            return self._failed(clip, error)

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
        before: Compressed | None = None
        for clip in clips:
            try:
                now = Compressed(clip) if clip.status != "ok" else self._compress(clip)
            except Exception as error:
                try:
                    now = Compressed(self._failed(clip, error))
                except DeviceError:
                    if before is not None:
                        yield self._written(before)
                    raise
            if before is not None:
                yield self._written(before)
            before = now
            if now.is_over:
                yield self._written(now)
                before = None
        if before is not None:
            yield self._written(before)

    def _written(self, done: Compressed) -> Clip:
        """Wait for the writes of a clip and return the clip."""
        clip = done.clip.without_frames()
        try:
            if done.features is not None:
                done.features.result()
            unwritten = each_on_its_own(
                done.writings, lambda name: done.writings[name].result(), root_of(self.caches)
            )
        except Exception as error:
            return self._failed(clip, error)
        times = {name: ms for name, ms in done.times.items() if name not in unwritten}
        if times or done.times:
            clip = replace(clip, compress_ms=json.dumps(times))
        return with_errors(clip, {**done.errors, **unwritten}, len(self.caches))

    def _failed(self, clip: Clip, error: Exception) -> Clip:
        """Convert an error into the clip's status; here alone errors of clips are handled."""
        raise_if_poisoned(error)
        reason = f"{type(error).__name__}: {error}"
        failed = clip.failed(COMPRESS_VIDEO.failure, reason)
        fault = store_fault(error, root_of(self.caches))
        return replace(failed, store_fault=fault).without_frames()

    def _compress(self, clip: Clip) -> Compressed:
        """Get the features and run all methods; the failure of one does not affect the others.

        Token sets that can be computed from the feature store are not stored.
        """
        damaged = bool(clip.damage)
        if damaged:  # it has a separate key, which is in no cache
            clip = replace(clip, stored=[])
        names = list(self.compressors) if damaged else clip.missing
        # A retried batch may have written some of its clips before its worker died.
        done = {name: entry for name in names if (entry := self._written_before(name, clip))}
        missing = [name for name in names if name not in done]
        times: dict[str, float | None] = {name: one.compress_ms for name, one in done.items()}
        identity, store = identity_of(vars(clip)), None if damaged else self.source.store
        if not missing and store is None:
            if done:  # so that the job counts the clip as encoded once
                clip = replace(clip, encode_ms=next(iter(done.values())).encode_ms)
            return Compressed(replace(clip, compress_ms=json.dumps({})), times)
        needs = frozenset[str]().union(*(self.compressors[name].needs for name in missing))
        frames, decode_video_ms = frames_of(clip), clip.decode_video_ms or 0.0
        if store is None:
            source = self.source.encoded(frames, needs)
        else:
            source = self.source.completed(
                identity, clip.stored or (), clip.encode, needs, frames, decode_video_ms
            )
        held = held_by(source.stored)
        writings: dict[str, Future[None]] = {}

        def compress(name: str) -> None:
            if serves(self.compressors[name], held):
                times[name] = None
                return
            found = ReadFeatures(source.features, identity, decode_video_ms, source.encode_ms)
            groups = [
                group
                for group in groups_of(clip, self.compressors[name])
                if damaged or group.text is None or not self.caches[name].holds_file(group.key)
            ]
            if not groups:
                return
            self.questions.load(groups)
            started = time.perf_counter()
            method = self.compressors[name]
            asked = self.questions.asked(method, found.features, groups)
            is_one = len(asked) == 1
            videos = [method.compress(asked[0])] if is_one else method.compress_for(asked)
            entries = finished(videos, found, started)
            writings[name] = self.writers.begin(partial(self._write, name, clip, groups, entries))
            times[name] = entries[0].compress_ms

        errors = each_on_its_own(missing, compress, root_of(self.caches))
        clip = replace(
            clip,
            encode_ms=source.encode_ms,
            encode_tflops=tera(source.features.encoder_flops),
            compress_ms=json.dumps({}),
            stored=list(source.stored),
        )
        return Compressed(clip.without_frames(), times, errors, writings, source.writing)

    def _written_before(self, name: str, clip: Clip) -> Entry | None:
        """A token set, if an earlier attempt whose worker died wrote all; else `None`."""
        cache = self.caches[name]
        keys = [group.key for group in groups_of(clip, self.compressors[name])]
        if not keys or not all(cache.holds_file(key) for key in keys):
            return None
        with suppress(FileNotFoundError, CacheError):
            entries = [cache.read(key) for key in keys]
            return entries[0]
        return None

    def _write(
        self, name: str, clip: Clip, groups: Sequence[QuestionGroup], entries: Sequence[Entry]
    ) -> None:
        """Write the token sets of one method."""
        identity = identity_of(vars(clip))
        for group, entry in zip(groups, entries, strict=True):
            self.caches[name].write(replace(identity, key=group.key), entry)


def tera(number: float | None) -> float | None:
    """A number in 10^12."""
    return None if number is None else number / 1e12


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
        for retries in (True, False):
            try:
                work(name)
                break
            except Exception as error:  # becomes the reason of this method's failure
                raise_if_poisoned(error)
                if store_fault(error, where):
                    raise
                if not (retries and is_out_of_memory(error)):
                    found[name] = reason_of(error)
                    break
            free_memory()  # outside of `except`, where the error still references tensors
    return found


def with_errors(clip: Clip, errors: Mapping[str, str], num_caches: int) -> Clip:
    """Record the failed methods of a clip; the clip itself fails if all methods of the job failed.

    Args:
        clip: The clip.
        errors: Cache name -> reason.
        num_caches: Number of caches of the job, including those that already held the clip.
    """
    if errors and len(errors) == num_caches:
        return clip.failed_by_methods(errors)
    return replace(clip, compress_errors=json.dumps(errors) if errors else None)


def frames_of(clip: Clip) -> VideoFrames:
    """The frames of a decoded clip, without copying them."""
    assert clip.pixels is not None
    return VideoFrames(
        pixels=np.frombuffer(clip.pixels, dtype=np.uint8).reshape(tuple(clip.pixels_shape or ())),
        timestamps=np.asarray(clip.frame_times, dtype=np.float64),
        decoder=clip.decoder or "",
        source=source_of(vars(clip)),
    )


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
        if found != wanted:
            differs = sorted(
                key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)
            )
            raise WorkerError(
                f"the code of method {wanted['name']!r} on {socket.gethostname()} is not the "
                f"driver's ({', '.join(differs)}): install the same code on every node, and "
                "restart its workers"
            )
