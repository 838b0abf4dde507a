"""Encode a clip once and run every compressor that its caches are missing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import numpy as np
import torch

from pipeline.cache.tokens import ClipIdentity, Entry, TokenCache
from pipeline.rows import DECODED, ENCODED, Row, bounds, failed, source_of
from pipeline.stages.declarations import COMPRESS_VIDEO, failed_by_methods
from pipeline.stages.device_faults import each_on_its_own, raise_if_poisoned, with_second_try
from pipeline.store_faults import store_fault
from tango_core.compressors.base import Compressor
from tango_core.models import load_encoder
from tango_core.models.base import ModelSpec
from tango_core.types import CompressedVideo, VideoFrames

_OF_FRAMES = frozenset(DECODED.names) - frozenset(ENCODED.names)


class CompressVideo:
    """Holds the vision encoder; turns decoded rows into cache entries and small rows.

    Args:
        model: Which encoder to load; the language model's weights are never read.
        compressors: Cache name -> compressor; a row's `missing` names which of them to run.
        caches: Cache name -> cache.
        num_threads: CPU threads of torch in this process.
    """

    def __init__(
        self,
        model: ModelSpec,
        compressors: Mapping[str, Compressor],
        caches: Mapping[str, TokenCache],
        num_threads: int = 1,
    ) -> None:
        torch.set_num_threads(num_threads)
        self.compressors = dict(compressors)
        self.caches = dict(caches)
        self.encoder = load_encoder(model)

    def __call__(self, row: Row) -> Row:
        """Fill the caches for one clip; a failure becomes the row's status.

        Raises:
            DeviceError: If this process can use its GPU no more.
        """
        if row["status"] != "ok":
            return without_frames(row)
        try:
            return self._compress(row)
        except Exception as error:  # the one place where what a clip provokes becomes a row
            raise_if_poisoned(error)
            reason = f"{type(error).__name__}: {error}"
            row = {**row, "store_fault": store_fault(error, root_of(self.caches))}
            return without_frames(failed(row, COMPRESS_VIDEO.failure, reason))

    def _compress(self, row: Row) -> Row:
        """Encode, compress, write; a method that fails leaves the others alone."""
        # A damaged clip has a key of its own, which no cache holds.
        names = self.compressors if row.get("damage") else row["missing"]
        # A retried batch may have written some of its clips before its worker died.
        missing = [
            n for n in names if not self.caches[n].storage.exists(f"{row['clip_key']}.parquet")
        ]
        if not missing:
            return without_frames(row)
        frames, clip = frames_of(row), identity_of(row)
        needs = frozenset[str]().union(*(self.compressors[name].needs for name in missing))
        started = time.perf_counter()
        features = with_second_try(lambda: self.encoder.encode(frames, needs))
        _synchronize(features.tokens)
        encode_ms = _ms_since(started)
        compress_ms: dict[str, float] = {}

        def compress(name: str) -> None:
            started = time.perf_counter()
            video = self.compressors[name].compress(features)
            _synchronize(video.tokens)
            ms = _ms_since(started)
            self.caches[name].write(
                clip, Entry(on_cpu(video), row["decode_video_ms"], encode_ms, ms)
            )
            compress_ms[name] = ms

        errors = each_on_its_own(missing, compress, root_of(self.caches))
        row = {**row, "encode_ms": encode_ms, "compress_ms": json.dumps(compress_ms)}
        return without_frames(with_errors(row, errors, len(self.caches)))


def with_errors(row: Row, errors: Mapping[str, str], num_caches: int) -> Row:
    """The row with the methods that failed; the clip has failed if there is no other.

    Args:
        row: Of a clip.
        errors: Cache name -> reason.
        num_caches: Of the whole job; those that already held the clip are as good as any.
    """
    if len(errors) == num_caches:
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


def identity_of(row: Row) -> ClipIdentity:
    """What the cache calls the clip of a row."""
    return ClipIdentity(row["clip_key"], row["video_id"], bounds(row), row["source_fingerprint"])


def without_frames(row: Row) -> Row:
    """The row without its frames."""
    return {name: value for name, value in row.items() if name not in _OF_FRAMES}


def root_of(caches: Mapping[str, TokenCache]) -> str:
    """The directory or bucket of all caches of a job, for messages."""
    return next((c.storage.root.rpartition("/")[0] for c in caches.values()), "the token cache")


def on_cpu(video: CompressedVideo) -> CompressedVideo:
    """The same tokens in host memory."""
    return CompressedVideo(
        video.tokens.cpu(), video.indices.cpu(), video.grid, video.timestamps.cpu(), video.source
    )


def _synchronize(tensor: torch.Tensor) -> None:
    """Wait for the device, so that a time is a time."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _ms_since(started: float) -> float:
    """Milliseconds since a `perf_counter` reading."""
    return (time.perf_counter() - started) * 1000
