"""Encode a clip once and run every compressor that its caches are missing.

What they kept is written by threads of its own beside a GPU, which does not wait for Parquet and
disks, and where caches are in a store, whose answers take long: the clip after it is encoded
meanwhile. A row is given back when all of it is in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from pipeline.cache.derived import derived, serves
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.names import held_by
from pipeline.cache.rows import CacheError, Entry, identity_of
from pipeline.cache.tokens import TokenCache
from pipeline.errors import DeviceError
from pipeline.rows import DECODED, ENCODED, Row, failed, source_of
from pipeline.stages.clip_features import FeatureSource
from pipeline.stages.declarations import COMPRESS_VIDEO, failed_by_methods
from pipeline.stages.device_faults import each_on_its_own, raise_if_poisoned
from pipeline.stages.same_code import raise_if_other_code
from pipeline.stages.write_behind import Writers, Writing
from pipeline.storage.faults import store_fault
from tango_core.compressors.base import Compressor
from tango_core.models import load_encoder
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device
from tango_core.types import VideoFrames

_OF_FRAMES = frozenset(DECODED.names) - frozenset(ENCODED.names)

_WRITERS = 4  # on two cores as good as two; more wait for the answers of a store at once


@dataclass(frozen=True)
class Compressed:
    """A clip whose token sets are made, and being written.

    Attributes:
        row: Of the clip, without its frames.
        times: Cache name -> milliseconds of the method; `None` where its token set is computed
            from stored features when it is asked for.
        errors: Cache name -> why the method failed.
        writings: Cache name -> its token set on the way to the cache.
        features: The clip's features on the way to the store; `None` for none.
    """

    row: Row
    times: dict[str, float | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    writings: dict[str, Writing] = field(default_factory=dict)
    features: Writing | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is being written."""
        all_of_it = [*self.writings.values(), *([self.features] if self.features else [])]
        return all(writing.is_over for writing in all_of_it)


class CompressVideo:
    """Turns decoded rows into cache entries; holds the vision encoder.

    Args:
        model: Which encoder to load; the language model's weights are never read.
        compressors: Cache name -> compressor; a row's `missing` names which of them to run.
        caches: Cache name -> cache.
        features: The job's feature store, if it has one.
        num_threads: CPU threads of torch in this process.

    Raises:
        WorkerError: If the code of a method here is not the one that its cache is named by.
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
        # On a CPU other threads would only take the encoder's time.
        waits = device.type == "cuda" or any(c.storage.store for c in self.caches.values())
        self.writers = Writers(_WRITERS if waits else 0)
        self.source = FeatureSource(partial(load_encoder, model), features, device, self.writers)
        self.source.encoder  # noqa: B018  (loaded now: every clip needs it)

    def __call__(self, row: Row) -> Row:
        """Fill the caches for one clip; see `stream`."""
        (done,) = self.stream([row])
        return done

    def stream(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Fill the caches for many clips; a failure becomes the row's status.

        Args:
            rows: Taken one by one. If others write, a row is given back when the next one is
                compressed: never are there more token sets in memory than those of two clips.

        Returns:
            The rows in their order, each when everything of it is written.

        Raises:
            DeviceError: If this process can use its GPU no more.
        """
        before: Compressed | None = None
        for row in rows:
            try:
                clip = self._begun(row)
            except DeviceError:
                if before is not None:
                    yield self._written(before)
                raise
            if before is not None:
                yield self._written(before)
            before = clip
            if clip.is_over:
                yield self._written(clip)
                before = None
        if before is not None:
            yield self._written(before)

    def _begun(self, row: Row) -> Compressed:
        """A clip with everything made, and nothing awaited."""
        if row["status"] != "ok":
            return Compressed(without_frames(row))
        try:
            return self._compress(row)
        except Exception as error:
            return Compressed(self._failed(row, error))

    def _written(self, clip: Compressed) -> Row:
        """The row of a clip when everything is in place."""
        try:
            if clip.features is not None:
                clip.features.wait()
            unwritten = each_on_its_own(
                clip.writings, lambda name: clip.writings[name].wait(), root_of(self.caches)
            )
        except Exception as error:
            return self._failed(clip.row, error)
        times = {name: ms for name, ms in clip.times.items() if name not in unwritten}
        row = {**clip.row, "compress_ms": json.dumps(times)} if clip.times else clip.row
        return with_errors(row, {**clip.errors, **unwritten}, len(self.caches))

    def _failed(self, row: Row, error: Exception) -> Row:
        """The one place where what a clip provokes becomes a row."""
        raise_if_poisoned(error)
        reason = f"{type(error).__name__}: {error}"
        row = {**row, "store_fault": store_fault(error, root_of(self.caches))}
        return without_frames(failed(row, COMPRESS_VIDEO.failure, reason))

    def _compress(self, row: Row) -> Compressed:
        """Get the features, compress; a method that fails leaves the others alone.

        A token set that can be computed from what the feature store holds afterwards is not stored.
        """
        damaged = bool(row.get("damage"))
        if damaged:  # it has a key of its own, which no cache holds
            row = {**row, "stored": []}
        names = self.compressors if damaged else row["missing"]
        # A retried batch may have written some of its clips before its worker died.
        done = {name: entry for name in names if (entry := self._written_before(name, row))}
        missing = [name for name in names if name not in done]
        times: dict[str, float | None] = {name: one.compress_ms for name, one in done.items()}
        clip, store = identity_of(row), None if damaged else self.source.store
        if not missing and store is None:
            if done:  # so that the job counts it as encoded, once
                row = {**row, "encode_ms": next(iter(done.values())).encode_ms}
            return Compressed(without_frames({**row, "compress_ms": json.dumps({})}), times)
        needs = frozenset[str]().union(*(self.compressors[name].needs for name in missing))
        frames, decode_video_ms = frames_of(row), row["decode_video_ms"]
        if store is None:
            source = self.source.encoded(frames, needs)
        else:
            source = self.source.completed(
                clip, row["stored"], row["encode"], needs, frames, decode_video_ms
            )
        held = held_by(source.stored)
        writings: dict[str, Writing] = {}

        def compress(name: str) -> None:
            if serves(self.compressors[name], held):
                times[name] = None
                return
            found = ReadFeatures(source.features, clip, decode_video_ms, source.encode_ms)
            entry = derived(self.compressors[name], found)
            writings[name] = self.writers.begin(partial(self.caches[name].write, clip, entry))
            times[name] = entry.compress_ms

        errors = each_on_its_own(missing, compress, root_of(self.caches))
        row = {
            **row,
            "encode_ms": source.encode_ms,
            "compress_ms": json.dumps({}),
            "stored": list(source.stored),
        }
        return Compressed(without_frames(row), times, errors, writings, source.writing)

    def _written_before(self, name: str, row: Row) -> Entry | None:
        """The token set of a clip that an attempt wrote whose worker died; `None` for none."""
        cache = self.caches[name]
        if not cache.holds_file(row["clip_key"]):
            return None
        with suppress(FileNotFoundError, CacheError):
            return cache.read(row["clip_key"])
        return None


def with_errors(row: Row, errors: Mapping[str, str], num_caches: int) -> Row:
    """The row with the methods that failed; the clip has failed if there is no other.

    Args:
        row: Of a clip.
        errors: Cache name -> reason.
        num_caches: Of the whole job; those that already held the clip are as good as any.
    """
    if errors and len(errors) == num_caches:
        return failed_by_methods(row, errors)
    return {**row, "compress_errors": json.dumps(errors) if errors else None}


def frames_of(row: Row) -> VideoFrames:
    """The frames of a decoded row, not copied."""
    return VideoFrames(
        pixels=np.frombuffer(row["pixels"], dtype=np.uint8).reshape(row["pixels_shape"]),
        timestamps=np.asarray(row["frame_times"], dtype=np.float64),
        decoder=row["decoder"],
        source=source_of(row),
    )


def without_frames(row: Row) -> Row:
    """The row without its frames."""
    return {name: value for name, value in row.items() if name not in _OF_FRAMES}


def root_of(caches: Mapping[str, TokenCache]) -> str:
    """The directory or bucket of all caches of a job, for messages."""
    return next((c.storage.root.rpartition("/")[0] for c in caches.values()), "the token cache")
