"""Features of one clip: from the encoder, from the feature store, or some from each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pipeline.cache.names import TOKENS
from pipeline.cache.quantised import rounded
from pipeline.cache.sealed_rows import (
    CacheError,
    ClipIdentity,
)
from pipeline.cache.stored_features import FeaturesDamagedError, StoredFeatures
from pipeline.cache.token_layout import INT8
from pipeline.features import FeatureStore
from pipeline.pools import PoolError
from pipeline.rows import one_line
from pipeline.stages.device_faults import with_second_try
from pipeline.stages.write_behind import Writers, Writing
from tango_core.compressors.finite import raise_for_values, raise_if_not_finite
from tango_core.models.base import VisionEncoder
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.types import VideoFrames, VisualFeatures


@dataclass(frozen=True)
class ClipFeatures:
    """What the methods work on, and where it comes from.

    Attributes:
        features: With all signals that were asked for, on the encoder's device.
        digest: Of the stored tokens; "" if they are not stored.
        decode_video_ms: Time to decode the clip, now or when its features were stored.
        encode_ms: Time of the encoder, now or then.
        encoded_ms: Time of the encoder now; `None` if it was not asked.
        writing: The features on the way to the store; `None` if they are there, or not stored.
    """

    features: VisualFeatures
    digest: str
    decode_video_ms: float
    encode_ms: float
    encoded_ms: float | None
    writing: Writing | None = None


class FeatureSource:
    """Gets the features of clips; loads the encoder when the first clip needs it.

    Args:
        load: Loads the encoder.
        store: The job's feature store; `None` if it has none.
        device: Where stored features are put.
        writers: Write features; `None` to write them where they are made.
    """

    def __init__(
        self,
        load: Callable[[], VisionEncoder],
        store: FeatureStore | None,
        device: torch.device,
        writers: Writers | None = None,
    ) -> None:
        self.store, self.device = store, device
        self.writers = writers or Writers(0)
        self._load = load
        self._encoder: VisionEncoder | None = None
        self._no_room: str | None = None

    @property
    def encoder(self) -> VisionEncoder:
        """The vision encoder.

        Raises:
            PoolError: If its device has no room for it, which is found out once.
        """
        if self._no_room is not None:
            raise PoolError(self._no_room)
        if self._encoder is not None:
            return self._encoder
        try:
            self._encoder = with_second_try(self._load)
            return self._encoder
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._no_room = (
                "the vision encoder does not fit beside what else is on its device "
                f"({one_line(str(error))[:200]}); raise pools.compress.num_gpus, or use a "
                "larger GPU"
            )
        free_memory()  # outside of `except`: the error holds the weights read so far
        raise PoolError(self._no_room)

    def encoded(
        self, frames: VideoFrames, needs: frozenset[str], decode_video_ms: float
    ) -> ClipFeatures:
        """Features of a clip that are not to be stored.

        Args:
            frames: Of the clip.
            needs: Signals.
            decode_video_ms: Time to decode them.
        """
        features, ms = self._encode(frames, needs)
        if self.store is not None and self.store.cache.dtype == INT8:
            features, _ = rounded(features)
        return ClipFeatures(features, "", decode_video_ms, ms, ms)

    def get(
        self,
        clip: ClipIdentity,
        stored: Sequence[str],
        to_encode: Sequence[str],
        needs: frozenset[str],
        frames: VideoFrames | None,
        decode_video_ms: float | None,
    ) -> ClipFeatures:
        """Features of a clip, the stored ones and those that are lacking; these are stored.

        Args:
            clip: Which clip.
            stored: Parts that the store holds.
            to_encode: What the encoder is asked for: `TOKENS`, names of signals; empty for nothing.
            needs: Signals that the methods read.
            frames: Of the clip; `None` if nothing is to be encoded.
            decode_video_ms: Time to decode them.

        Raises:
            CacheError: If stored features are damaged; they have been removed then.
            FileNotFoundError: If they have gone.
        """
        assert self.store is not None
        cache = self.store.cache
        if frames is None or decode_video_ms is None:
            features, opened = self._read(clip, stored, needs)
            row = opened.row
            return ClipFeatures(features, opened.digest, row.decode_video_ms, row.encode_ms, None)
        signals = frozenset(to_encode) - {TOKENS}
        kept, older = sorted(signals & self.store.signals), needs - signals
        if TOKENS in to_encode:
            features, ms = self._encode(frames, signals)
            raise_if_not_finite(features, signals)
            levels = None
            if cache.dtype == INT8:
                features, levels = rounded(features)
            digest, write = cache.prepared(clip, features, kept, (decode_video_ms, ms), levels)
            writing = self.writers.begin(write)
            if older:  # of a clip whose tokens had gone
                writing.wait()
                opened = self._open(clip, stored)
                own: dict[str, Any] = with_second_try(
                    partial(opened.signals_on, self.device, older)
                )
                features = replace(features, **own)
            return ClipFeatures(features, digest, decode_video_ms, ms, ms, writing)
        started = time.perf_counter()
        found = with_second_try(partial(self.encoder.encode_signals, frames, signals))
        synchronize(found.timestamps)
        ms = _ms_since(started)
        raise_for_values(found, sorted(signals))
        fresh = {name: getattr(found, name) for name in signals}
        times = (decode_video_ms, ms)
        cache.write_signals(clip, found, {name: fresh[name] for name in kept}, times)
        features, opened = self._read(clip, stored, older)
        features = replace(features, **fresh)
        return ClipFeatures(features, opened.digest, decode_video_ms, ms, ms)

    def _open(self, clip: ClipIdentity, stored: Sequence[str]) -> StoredFeatures:
        """The stored features of a clip; damaged ones are removed."""
        assert self.store is not None
        try:
            return self.store.cache.opened(clip.key, stored)
        except FeaturesDamagedError as error:
            raise self._removed(clip.key, error) from error

    def _read(
        self, clip: ClipIdentity, stored: Sequence[str], needs: frozenset[str]
    ) -> tuple[VisualFeatures, StoredFeatures]:
        """All stored tokens and some signals of a clip; damaged ones are removed."""
        assert self.store is not None

        def read(opened: StoredFeatures) -> tuple[VisualFeatures, StoredFeatures]:
            return opened.features(needs, self.device), opened

        try:
            return with_second_try(partial(self.store.cache.using, clip.key, read, stored))
        except FeaturesDamagedError as error:
            raise self._removed(clip.key, error) from error

    def _removed(self, key: str, error: CacheError) -> CacheError:
        """Make damaged features a miss."""
        assert self.store is not None
        self.store.cache.discard(key)
        return CacheError(f"{error}; it was removed, --resume computes it again")

    def _encode(self, frames: VideoFrames, needs: frozenset[str]) -> tuple[VisualFeatures, float]:
        """Tokens and signals from the encoder, and its time in milliseconds."""
        encoder = self.encoder
        started = time.perf_counter()
        features = with_second_try(partial(encoder.encode, frames, needs))
        synchronize(features.tokens)
        return features, _ms_since(started)


def synchronize(tensor: torch.Tensor) -> None:
    """Wait for the device, so that a time is a time."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _ms_since(started: float) -> float:
    """Milliseconds since a `perf_counter` reading."""
    return (time.perf_counter() - started) * 1000
