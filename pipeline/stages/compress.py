"""Encode a clip once and run every compressor that its caches are missing.

What they kept is written by threads of its own beside a GPU, which does not wait for Parquet and
disks, and where caches are in a store, whose answers take long: the clip after it is encoded
meanwhile. A row is given back when all of it is in place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from pipeline.cache.plans import PlanEntry
from pipeline.cache.sealed_rows import CacheError, identity_of
from pipeline.cache.tokens import ClipIdentity, Entry, TokenCache
from pipeline.errors import DeviceError
from pipeline.features import FeatureStore
from pipeline.rows import DECODED, ENCODED, Row, failed, source_of
from pipeline.stages.clip_features import ClipFeatures, FeatureSource, synchronize
from pipeline.stages.declarations import COMPRESS_VIDEO, failed_by_methods
from pipeline.stages.device_faults import each_on_its_own, raise_if_poisoned
from pipeline.stages.same_code import raise_if_other_code
from pipeline.stages.write_behind import Writers, Writing
from pipeline.store_faults import store_fault
from tango_core.combination import Combination
from tango_core.compressors.base import Compressor
from tango_core.models import load_encoder
from tango_core.models.base import ModelSpec
from tango_core.models.placement import resolve_device
from tango_core.ops.transfer import download_together
from tango_core.types import CompressedVideo, NotFiniteError, VideoFrames

_OF_FRAMES = frozenset(DECODED.names) - frozenset(ENCODED.names)

_WRITERS = 4  # on two cores as good as two; more wait for the answers of a store at once


@dataclass(frozen=True)
class Compressed:
    """A clip whose token sets are made, and being written.

    Attributes:
        row: Of the clip, without its frames.
        times: Cache name -> milliseconds of the method.
        errors: Cache name -> why the method failed.
        writings: Cache name -> its token set on the way to the cache.
        features: The clip's features on the way to the store; `None` for none.
    """

    row: Row
    times: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    writings: dict[str, Writing] = field(default_factory=dict)
    features: Writing | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is being written."""
        all_of_it = [*self.writings.values(), *([self.features] if self.features else [])]
        return all(writing.is_over for writing in all_of_it)


class CompressVideo:
    """Turns decoded rows, and rows of clips whose features are stored, into cache entries.

    Holds the vision encoder, which in a job with a feature store is loaded when the first clip
    needs it.

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
        if features is None:
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
        """Get the features, compress; a method that fails leaves the others alone."""
        # A damaged clip has a key of its own, which no cache holds.
        damaged = bool(row.get("damage"))
        names = self.compressors if damaged else row["missing"]
        # A retried batch may have written some of its clips before its worker died. A plan is
        # written again: it may be one for features that have gone.
        done = {name: entry for name in names if (entry := self._written_before(name, row))}
        missing = [name for name in names if name not in done]
        times = {name: entry.compress_ms for name, entry in done.items()}
        stores = self.source.store is not None and not damaged
        if not missing and not (stores and row["encode"]):
            if done and row["encode"]:  # so that the job counts it as encoded, once
                row = {**row, "encode_ms": next(iter(done.values())).encode_ms}
            return Compressed(without_frames({**row, "compress_ms": json.dumps({})}), times)
        needs = frozenset[str]().union(*(self.compressors[name].needs for name in missing))
        clip = identity_of(row)
        if stores:
            frames = frames_of(row) if row["encode"] else None
            source = self.source.get(
                clip, row["stored"], row["encode"], needs, frames, row["decode_video_ms"]
            )
        else:
            source = self.source.encoded(frames_of(row), needs, row["decode_video_ms"])
        writings: dict[str, Writing] = {}

        def compress(name: str) -> None:
            ms, write = self._made(name, clip, source)
            writings[name] = self.writers.begin(write)
            times[name] = ms

        errors = each_on_its_own(missing, compress, root_of(self.caches))
        row = {**row, "encode_ms": source.encoded_ms, "compress_ms": json.dumps({})}
        return Compressed(without_frames(row), times, errors, writings, source.writing)

    def _written_before(self, name: str, row: Row) -> Entry | None:
        """The token set of a clip that an attempt wrote whose worker died; `None` for none."""
        cache = self.caches[name]
        if not cache.holds_tokens(row["clip_key"]):
            return None
        with suppress(FileNotFoundError, CacheError):
            return cache.read_tokens(row["clip_key"]).entry
        return None

    def _made(
        self, name: str, clip: ClipIdentity, source: ClipFeatures
    ) -> tuple[float, Callable[[], None]]:
        """Compress a clip for one cache; milliseconds of the method, and what writes the result."""
        compressor, cache = self.compressors[name], self.caches[name]
        times = source.decode_video_ms, source.encode_ms
        tokens = source.features.tokens
        started = time.perf_counter()
        if source.digest and (compressor.has_plan or compressor.outer_retention >= 1):
            assert cache.features is not None
            plan = on_cpu(compressor.plan(source.features))
            ms = _ms_since(started)
            entry = PlanEntry(
                plan=plan,
                features=cache.features.name,
                tokens_digest=source.digest,
                dtype=str(tokens.dtype).removeprefix("torch."),
                width=tokens.shape[2],
                source=source.features.source,
                decode_video_ms=times[0],
                encode_ms=times[1],
                compress_ms=ms,
            )
            return ms, partial(cache.write_plan, clip, entry)
        video = compressor.compress(source.features)
        synchronize(video.tokens)
        ms = _ms_since(started)
        raise_if_overflowed(video)
        return ms, partial(cache.write, clip, Entry(tokens_on_cpu(video), *times, ms))


def raise_if_overflowed(video: CompressedVideo) -> None:
    """Raise `NotFiniteError` if merging finite tokens gave NaN or infinity."""
    if not bool(video.tokens.sum(dtype=torch.float32).isfinite()) and not bool(
        video.tokens.isfinite().all()
    ):
        dtype = str(video.tokens.dtype).removeprefix("torch.")
        raise NotFiniteError(
            f"tokens that this method merged are NaN or infinite in {dtype}; set model.dtype to "
            "float32 or bfloat16"
        )


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


def on_cpu(plan: Combination) -> Combination:
    """The same plan in host memory, copied in one piece."""
    parts = _tensors_of(plan)
    drawn: dict[str, Any] = {} if plan.drawing is None else _tensors_of(plan.drawing)
    moved = iter(download_together([*parts.values(), *drawn.values()]))
    parts = {name: next(moved) for name in parts}
    drawn = {name: next(moved) for name in drawn}
    drawing = plan.drawing and replace(plan.drawing, **drawn)
    return replace(plan, **parts, drawing=drawing)


def _tensors_of(record: object) -> dict[str, Any]:
    """The attributes that are tensors, by name."""
    return {name: part for name, part in vars(record).items() if isinstance(part, torch.Tensor)}


def tokens_on_cpu(video: CompressedVideo) -> CompressedVideo:
    """The same tokens in host memory, copied in one piece."""
    parts = _tensors_of(video)
    moved = iter(download_together([*parts.values()]))
    parts = {name: next(moved) for name in parts}
    return replace(video, **parts)


def _ms_since(started: float) -> float:
    """Milliseconds since a `perf_counter` reading."""
    return (time.perf_counter() - started) * 1000
