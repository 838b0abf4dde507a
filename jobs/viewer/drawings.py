"""What one token set is made of, as the page draws it: read from its cache, no model needed."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.results.plain import Json
from pipeline.cache.plans import StoredPlan
from pipeline.cache.sealed_rows import CacheError
from pipeline.cache.tokens import TokenCache
from pipeline.redaction import redacted

if TYPE_CHECKING:
    import numpy.typing as npt

    from tango_core.combination import Drawing

ONLY_POSITIONS = (
    "Only the kept positions are stored for this token set: not which tokens were merged, the "
    "segments, the static places or the saliency. Run the recipe with cache.features: tokens and "
    "a new --cache directory; methods that make no plan store no more than this."
)


@dataclass(frozen=True)
class TokenDrawing:
    """What is known of one token set.

    Attributes:
        grid: (T, H, W).
        times: (T,) seconds.
        kept: (K,) int64 ascending flat positions t * H * W + h * W + w.
        offsets: (K + 1,) int64; kept token k is the sum over `sources[offsets[k]:offsets[k + 1]]`;
            `None` where every kept token is the one at its position.
        sources: (N,) int64 flat positions.
        weights: (N,) float32.
        segments: Frames of every segment, adding up to T; empty if there are none.
        static: (T * L,) bool; `None` if there are none, or not known.
        saliency: (T * L,) uint8, 0 for the lowest of the clip; `None` if there is none.
        saliency_range: The scores that 0 and 255 stand for.
        missing: What cannot be drawn, with what to do about it, in sentences.
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
        """The positions that kept token `kept` is made of, and their weights."""
        if self.offsets is None or self.sources is None or self.weights is None:
            return self.kept[kept : kept + 1], np.ones(1, np.float32)
        part = slice(int(self.offsets[kept]), int(self.offsets[kept + 1]))
        return self.sources[part], self.weights[part]

    def to_json(self) -> Json:
        """For the page: arrays as base64 of little-endian numbers."""
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
    """Numbers as base64; `None` stays."""
    return None if values is None else base64.b64encode(values.astype(kind).tobytes()).decode()


class TokenSets:
    """The token caches of some runs, each opened when it is first asked for.

    Args:
        roots: Where caches may be, the likeliest place first.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(roots)
        self._lock = threading.Lock()
        self._opened: dict[str, TokenCache | str] = {}

    def sampling_of(self, name: str) -> Mapping[str, Any] | None:
        """How the frames behind a cache were sampled, from its manifest; `None` if unknown."""
        with self._lock:
            cache = self._cache(name)
        model = None if isinstance(cache, str) else cache.settings.get("model")
        frames = model.get("frames") if isinstance(model, dict) else None
        return frames if isinstance(frames, dict) else None

    def drawing(self, name: str, key: str) -> TokenDrawing | str:
        """A token set; or a sentence that says why there is none, and what to do.

        Args:
            name: Of the cache.
            key: Of the clip in every cache; "" if it has none.
        """
        if not name:
            return "The run does not say which token cache it read."
        if not key:
            return "The clip's file was not found, so there is nothing stored to draw."
        with self._lock:  # indices of shards are filled while they are read
            cache = self._cache(name)
            if isinstance(cache, str):
                return cache
            try:
                row = cache.read_as_stored(key)
            except FileNotFoundError:
                return (
                    f"The token cache {name} does not hold this clip: it was removed, or the video "
                    "was replaced since. Run the job again."
                )
            except (CacheError, OSError) as error:
                return f"{redacted(' '.join(str(error).split()))}. Run the job again."
        if isinstance(row, StoredPlan):
            return _of_plan(row)
        video = row.entry.video
        return TokenDrawing(
            video.grid, video.timestamps.numpy(), video.indices.numpy(), missing=(ONLY_POSITIONS,)
        )

    def _cache(self, name: str) -> TokenCache | str:
        """A cache, or why there is none."""
        if name not in self._opened:
            self._opened[name] = self._found(name)
        return self._opened[name]

    def _found(self, name: str) -> TokenCache | str:
        """Look for a cache in all places."""
        for root in self.roots:
            try:
                return TokenCache.existing(root, name)
            except FileNotFoundError:
                continue
            except (CacheError, OSError, ValueError) as error:
                return f"{redacted(' '.join(str(error).split()))}."
        where = " or ".join(redacted(root) for root in self.roots)
        return f"The token cache {name} is not in {where}. Name its directory with --cache."


def _of_plan(row: StoredPlan) -> TokenDrawing:
    """All that a plan says."""
    plan = row.entry.plan
    drawing: Drawing | None = plan.drawing
    missing: list[str] = []
    if drawing is None:
        missing.append(
            "This plan was stored without segments, static places and saliency; run the job again "
            "with a new --cache directory."
        )
    scale = None if drawing is None else drawing.saliency_range
    return TokenDrawing(
        grid=plan.grid,
        times=plan.timestamps.numpy(),
        kept=plan.indices.numpy(),
        offsets=None if plan.offsets is None else plan.offsets.numpy(),
        sources=None if plan.sources is None else plan.sources.numpy(),
        weights=None if plan.weights is None else plan.weights.numpy(),
        segments=drawing.segments if drawing else (),
        static=None
        if drawing is None or drawing.static is None
        else drawing.static.numpy().ravel(),
        saliency=(
            None
            if drawing is None or drawing.saliency is None
            else drawing.saliency.numpy().ravel()
        ),
        saliency_range=None if scale is None else (float(scale[0]), float(scale[1])),
        missing=tuple(missing),
    )
