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
        features, ms = self._timed(self.encoder.encode, frames, needs)
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
        cache, writes = self.store.cache, self.store.writes
        whole, signals = TOKENS in to_encode, frozenset(to_encode) - {TOKENS}
        kept = sorted(signals & self.store.signals) if writes else []
        encode = self.encoder.encode if whole else self.encoder.encode_signals
        features, ms = self._timed(encode, frames, signals)
        levels = None
        if whole:
            raise_if_not_finite(features, signals)
            if cache.dtype == INT8:
                features, levels = rounded(features)
        else:
            raise_for_values(features, sorted(signals))
        times = (decode_video_ms, ms)
        write = cache.prepared(clip, features, kept, times, levels, signals_alone=not whole)
        writing = self.writers.begin(write) if writes else None
        if not whole:
            fresh = {name: getattr(features, name) for name in (*signals, "encoder_flops")}
            found = self.stored(clip.key, stored, needs - signals)
            features = replace(found.features, **fresh)
        parts = (*((TOKENS,) if whole else stored), *signals_parts(kept))
        return ClipFeatures(features, ms, () if whole and not writes else parts, writing)

    def stored(self, key: str, parts: Sequence[str], needs: frozenset[str]) -> ReadFeatures:
        """Read stored tokens and signals of a clip onto the device."""
        assert self.store is not None
        found = self.store.cache.read(key, parts, needs, remove_damaged=True)
        return with_second_try(partial(on_device, found, self.device))

    def _timed(
        self,
        encode: Callable[[VideoFrames, frozenset[str]], VisualFeatures],
        frames: VideoFrames,
        needs: frozenset[str],
    ) -> tuple[VisualFeatures, float]:
        """Encode frames; returns the features and the time in milliseconds."""
        started = time.perf_counter()
        features = with_second_try(partial(encode, frames, needs))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return features, (time.perf_counter() - started) * 1000
