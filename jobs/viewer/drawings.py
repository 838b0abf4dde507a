"""Kept and merged tokens of a token set in the form that the page draws."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.results.quantities import Json
from pipeline.cache.derived import compressor_of, features_with
from pipeline.cache.directory import TokenCache
from pipeline.cache.rows import CacheError
from pipeline.redaction import redacted
from tango_core.combination import Combination, Drawing

if TYPE_CHECKING:
    import numpy.typing as npt

ONLY_POSITIONS = (
    "Only the kept positions of this token set are known, not the merged tokens, the segments, the "
    "static positions or the saliency. They are computed from stored features, for methods of this "
    "version that have a plan: run the recipe with cache.features: all."
)


@dataclass(frozen=True)
class TokenDrawing:
    """A token set with the data that the page draws.

    Attributes:
        grid: (T, H, W).
        times: (T,) seconds.
        kept: (K,) int64 ascending flat positions t * H * W + h * W + w.
        offsets: (K + 1,) int64; kept token k is the weighted sum over
            `sources[offsets[k]:offsets[k + 1]]`; `None` if tokens are kept unchanged.
        sources: (N,) int64 flat positions.
        weights: (N,) float32.
        segments: Number of frames of every segment, adding up to T; empty without segments.
        static: (T * L,) bool, static positions; `None` if there are none or unknown.
        saliency: (T * L,) uint8, 0 for the clip's lowest score; `None` if unknown.
        saliency_range: The scores of the values 0 and 255.
        missing: Sentences about what cannot be drawn, and how to obtain it.
    """

    grid: tuple[int, int, int]
    times: npt.NDArray[np.float64]
    kept: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64] | None = None
    sources: npt.NDArray[np.int64] | None = None
    weights: npt.NDArray[np.float32] | None = None
    segments: tuple[int, ...] = ()
    static: npt.NDArray[np.bool_] | None = None
    saliency: npt.NDArray[np.uint8] | None = None
    saliency_range: tuple[float, float] | None = None
    missing: tuple[str, ...] = ()

    @property
    def tokens_per_frame(self) -> int:
        """H * W."""
        return self.grid[1] * self.grid[2]

    def sources_of(self, kept: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Positions and weights whose sum is kept token `kept`."""
        if self.offsets is None or self.sources is None or self.weights is None:
            return self.kept[kept : kept + 1], np.ones(1, np.float32)
        part = slice(int(self.offsets[kept]), int(self.offsets[kept + 1]))
        return self.sources[part], self.weights[part]

    def to_json(self) -> Json:
        """JSON for the page; arrays are base64 of little-endian numbers."""
        places = "<u2" if math.prod(self.grid) <= 65536 else "<u4"
        return {
            "grid": list(self.grid),
            "times": [round(float(time), 4) for time in self.times],
            "places": places,
            "kept": _packed(self.kept, places),
            "offsets": _packed(self.offsets, "<u4"),
            "sources": _packed(self.sources, places),
            "weights": _packed(self.weights, "<f4"),
            "segments": list(self.segments),
            "static": _packed(self.static, "u1"),
            "saliency": _packed(self.saliency, "u1"),
            "range": self.saliency_range and [float(f"{one:.4g}") for one in self.saliency_range],
            "missing": list(self.missing),
        }


def _packed(values: Any, kind: str) -> str | None:
    """Encode numbers as base64; `None` is unchanged."""
    return None if values is None else base64.b64encode(values.astype(kind).tobytes()).decode()


class TokenSets:
    """The token caches of some runs, opened on first use.

    Args:
        roots: Possible directories or URLs of the caches, the likeliest first.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self._lock = threading.Lock()
        self._opened: dict[str, TokenCache | str] = {}
        self._plans: dict[str, Callable[[str], Combination | None]] = {}

    def sampling_of(self, name: str) -> Mapping[str, Any] | None:
        """Frame sampling settings from the manifest of a cache; `None` if unknown."""
        with self._lock:
            cache = self._cache(name)
        model = None if isinstance(cache, str) else cache.settings.get("model")
        frames = model.get("frames") if isinstance(model, dict) else None
        return frames if isinstance(frames, dict) else None

    def drawing(self, name: str, key: str) -> TokenDrawing | str:
        """Load a token set; or return a sentence with the reason why it is missing and what to do.

        Args:
            name: Name of the cache.
            key: Key of the clip, equal in all caches; "" if it has none.
        """
        if not name:
            return "The run has no record of its token cache."
        if not key:
            return "The clip's file was not found, so there is nothing stored to draw."
        with self._lock:  # reading fills the indices of shards
            cache = self._cache(name)
            if isinstance(cache, str):
                return cache
            compressor = compressor_of(cache.settings)
            if compressor is not None and compressor.question_field is not None:
                return "This method keeps other tokens for every question, which are not drawn."
            try:
                plan = self._plan(cache, key)
                if plan is not None:
                    return _of_plan(plan)
                video = cache.read(key).video
            except FileNotFoundError:
                return (
                    f"The token cache {name} does not hold this clip: it was removed, or the video "
                    "was replaced since. Run the job again."
                )
            except (CacheError, OSError) as error:
                return f"{redacted(' '.join(str(error).split()))}. Run the job again."
        return TokenDrawing(
            video.grid, video.timestamps.numpy(), video.indices.numpy(), missing=(ONLY_POSITIONS,)
        )

    def _plan(self, cache: TokenCache, key: str) -> Combination | None:
        """Plan of a method for a clip, computed from its features; `None` if they are not stored.

        The locations of all clips' features are listed once.
        """
        if cache.name not in self._plans:
            self._plans[cache.name] = _plans_of(cache)
        return self._plans[cache.name](key)

    def _cache(self, name: str) -> TokenCache | str:
        """An opened cache, or the reason why there is none."""
        if name not in self._opened:
            self._opened[name] = self._found(name)
        return self._opened[name]

    def _found(self, name: str) -> TokenCache | str:
        """Look for a cache in all roots."""
        for root in self.roots:
            try:
                return TokenCache.existing(root, name)
            except FileNotFoundError:
                continue
            except (CacheError, OSError, ValueError) as error:
                return f"{redacted(' '.join(str(error).split()))}."
        where = " or ".join(redacted(root) for root in self.roots)
        return f"The token cache {name} is not in {where}. Name its directory with --cache."


def _plans_of(cache: TokenCache) -> Callable[[str], Combination | None]:
    """A function from a clip's key to the plan of the cache's method; `None` if unavailable."""
    compressor = compressor_of(cache.settings)
    if compressor is None or not (compressor.has_plan or compressor.outer_retention >= 1):
        return lambda key: None
    read = features_with(cache, compressor)

    def plan(key: str) -> Combination | None:
        with suppress(FileNotFoundError):
            return compressor.plan(read(key).features)
        return None

    return plan


def _of_plan(plan: Combination) -> TokenDrawing:
    """Drawing of a plan."""
    drawing = plan.drawing or Drawing()
    scale = drawing.saliency_range
    return TokenDrawing(
        grid=plan.grid,
        times=plan.timestamps.numpy(),
        kept=plan.indices.numpy(),
        offsets=None if plan.offsets is None else plan.offsets.numpy(),
        sources=None if plan.sources is None else plan.sources.numpy(),
        weights=None if plan.weights is None else plan.weights.numpy(),
        segments=drawing.segments,
        static=None if drawing.static is None else drawing.static.numpy().ravel(),
        saliency=None if drawing.saliency is None else drawing.saliency.numpy().ravel(),
        saliency_range=None if scale is None else (float(scale[0]), float(scale[1])),
    )
