"""Kept and merged tokens of a token set in the form that the page draws."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from jobs.results.quantities import Json
from pipeline.cache.derived import compressor_of, features_with
from pipeline.cache.directory import TokenCache
from pipeline.cache.rows import CacheError
from pipeline.redaction import redacted
from tango_core.combination import Combination, Drawing

ONLY_POSITIONS = (
    "Only the kept positions of this token set are known, not the merged tokens, the segments, the "
    "static positions or the saliency. They are computed from stored features, for methods of this "
    "version that have a plan: run the recipe with cache.features: all."
)


@dataclass(frozen=True)
class TokenDrawing:
    """A token set with the data that the page draws.

    Attributes:
        plan: Kept tokens and their sources; a selection if the sources are unknown.
        missing: Sentences about what cannot be drawn, and how to obtain it.
    """

    plan: Combination
    missing: tuple[str, ...] = ()

    def to_json(self) -> Json:
        """JSON for the page; arrays are base64 of little-endian numbers."""
        plan, drawing = self.plan, self.plan.drawing or Drawing()
        index_type = "<u2" if plan.num_total <= 65536 else "<u4"
        scale = drawing.saliency_range
        return {
            "grid": list(plan.grid),
            "times": [round(time, 4) for time in plan.timestamps.tolist()],
            "index_type": index_type,
            "kept": _packed(plan.indices, index_type),
            "offsets": _packed(plan.offsets, "<u4"),
            "sources": _packed(plan.sources, index_type),
            "weights": _packed(plan.weights, "<f4"),
            "segments": list(drawing.segments),
            "static": _packed(drawing.static, "u1"),
            "saliency": _packed(drawing.saliency, "u1"),
            "range": None if scale is None else [float(f"{one:.4g}") for one in scale.tolist()],
            "missing": list(self.missing),
        }


def _packed(values: torch.Tensor | None, kind: str) -> str | None:
    """Encode numbers as base64; `None` is unchanged."""
    if values is None:
        return None
    return base64.b64encode(values.numpy().astype(kind).tobytes()).decode()


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
            model = cache.settings.get("model")
            if isinstance(model, dict) and "merging" in model:
                return "The encoder merges frames, whose tokens are not drawn."
            try:
                if cache.name not in self._plans:  # the locations of all features are listed once
                    self._plans[cache.name] = _plans_of(cache)
                plan = self._plans[cache.name](key)
                if plan is not None:
                    return TokenDrawing(plan)
                video = cache.read(key).video
            except FileNotFoundError:
                return (
                    f"The token cache {name} does not hold this clip: it was removed, or the video "
                    "was replaced since. Run the job again."
                )
            except (CacheError, OSError) as error:
                return f"{redacted(' '.join(str(error).split()))}. Run the job again."
        selection = Combination(video.indices, video.grid, video.timestamps)
        return TokenDrawing(selection, (ONLY_POSITIONS,))

    def _cache(self, name: str) -> TokenCache | str:
        """An opened cache, or the reason why there is none."""
        if name not in self._opened:
            where = " or ".join(redacted(root) for root in self.roots)
            self._opened[name] = (
                f"The token cache {name} is not in {where}. Name its directory with --cache."
            )
            for root in self.roots:
                try:
                    self._opened[name] = TokenCache.existing(root, name)
                except FileNotFoundError:
                    continue
                except (CacheError, OSError, ValueError) as error:
                    self._opened[name] = f"{redacted(' '.join(str(error).split()))}."
                break
        return self._opened[name]


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
