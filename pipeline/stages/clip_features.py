"""Get the features of a clip from the encoder, from the feature store, or from both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from pipeline.cache.derived import on_device
from pipeline.cache.features import FeatureStore, ReadFeatures
from pipeline.cache.names import TOKENS, signals_parts
from pipeline.cache.rows import INT8, ClipIdentity, rounded
from pipeline.clips import one_line
from pipeline.resources.pools import PoolError
from pipeline.stages.device_faults import with_second_try
from pipeline.stages.threads import Writers
from tango_core.models.base import VisionEncoder
from tango_core.models.memory_faults import is_out_of_memory
from tango_core.ops.finite import raise_for_values, raise_if_not_finite
from tango_core.types import VideoFrames, VisualFeatures


@dataclass(frozen=True)
class ClipFeatures:
    """Features of a clip.

    Attributes:
        features: Tokens and requested signals, on the encoder's device.
        encode_ms: Time of the encoder.
        stored: Parts of the clip that are in the feature store once `writing` is done.
        writing: Pending write to the feature store; `None` if nothing is written.
    """

    features: VisualFeatures
    encode_ms: float
    stored: tuple[str, ...] = ()
    writing: Future[None] | None = None


class FeatureSource:
    """Provides the features of clips; loads the encoder when the first clip needs it.

    Args:
        load: Function that loads the encoder.
        store: The job's feature store; `None` if it has none.
        device: Device for stored features.
        writers: Threads that write features; `None` to write in the calling thread.
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

    @cached_property
    def encoder(self) -> VisionEncoder:
        """The vision encoder.

        Raises:
            PoolError: If it does not fit into the device's memory.
        """
        try:
            return with_second_try(self._load)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = one_line(str(error))[:200]
        raise PoolError(
            f"the vision encoder does not fit into the free memory of its device ({reason}); raise "
            "pools.compress.num_gpus, or use a larger GPU"
        )

    def encoded(self, frames: VideoFrames, needs: frozenset[str]) -> ClipFeatures:
        """Encode a clip without storing its features.

        Args:
            frames: Frames of the clip.
            needs: Signals to compute.
        """
        features, ms = self._encode(frames, needs)
        if self.store is not None and self.store.cache.dtype == INT8:
            features, _ = rounded(features)
        return ClipFeatures(features, ms)

    def completed(
        self,
        clip: ClipIdentity,
        stored: Sequence[str],
        to_encode: Sequence[str],
        needs: frozenset[str],
        frames: VideoFrames,
        decode_video_ms: float,
    ) -> ClipFeatures:
        """Read the stored features of a clip, and encode and store the missing ones.

        Args:
            clip: Identity of the clip.
            stored: Parts in the store.
            to_encode: Features to encode: `TOKENS` and names of signals.
            needs: Signals that the methods read.
            frames: Frames of the clip.
            decode_video_ms: Time to decode the frames.

        Raises:
            CacheError: If stored features are damaged; they are removed.
            FileNotFoundError: If stored features have been removed.
        """
        assert self.store is not None
        cache, signals = self.store.cache, frozenset(to_encode) - {TOKENS}
        kept = sorted(signals & self.store.signals) if self.store.writes else []
        parts = signals_parts(kept)
        if TOKENS in to_encode:
            features, ms = self._encode(frames, signals)
            raise_if_not_finite(features, signals)
            levels = None
            if cache.dtype == INT8:
                features, levels = rounded(features)
            if not self.store.writes:
                return ClipFeatures(features, ms)
            write = cache.prepared(clip, features, kept, (decode_video_ms, ms), levels)
            writing = self.writers.begin(write)
            return ClipFeatures(features, ms, (TOKENS, *parts), writing)
        started = time.perf_counter()
        found = with_second_try(partial(self.encoder.encode, frames, signals))
        synchronize(found.timestamps)
        ms = _ms_since(started)
        raise_for_values(found, sorted(signals))
        fresh = {name: getattr(found, name) for name in (*signals, "encoder_flops")}
        times = (decode_video_ms, ms)
        cache.prepared(clip, found, kept, times, signals_alone=True)()
        features = self.stored(clip.key, stored, needs - signals).features
        return ClipFeatures(replace(features, **fresh), ms, (*stored, *parts))

    def stored(self, key: str, parts: Sequence[str], needs: frozenset[str]) -> ReadFeatures:
        """Read stored tokens and signals of a clip onto the device."""
        assert self.store is not None
        found = self.store.cache.read(key, parts, needs, remove_damaged=True)
        return with_second_try(partial(on_device, found, self.device))

    def _encode(self, frames: VideoFrames, needs: frozenset[str]) -> tuple[VisualFeatures, float]:
        """Encode frames; returns tokens with signals, and the time in milliseconds."""
        encoder = self.encoder
        started = time.perf_counter()
        features = with_second_try(partial(encoder.encode, frames, needs))
        synchronize(features.tokens)
        return features, _ms_since(started)


def synchronize(tensor: torch.Tensor) -> None:
    """Wait until the device has finished, so that a time measurement is complete."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _ms_since(started: float) -> float:
    """Milliseconds since a `perf_counter` reading."""
    return (time.perf_counter() - started) * 1000
