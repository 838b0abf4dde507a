"""Token sets computed from stored features on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from pipeline.cache.directory import TokenCache
from pipeline.cache.features import ReadFeatures, features_for
from pipeline.cache.names import TOKENS, held_by
from pipeline.cache.rows import CacheError, Entry
from tango_core.combination import Combination
from tango_core.compressors import METHODS
from tango_core.compressors.base import Compressor
from tango_core.errors import MissingFileError
from tango_core.ops.transfer import download_together, upload
from tango_core.types import CompressedVideo, NotFiniteError, VisualFeatures

T = TypeVar("T", CompressedVideo, Combination)


def derived(compressor: Compressor, found: ReadFeatures) -> Entry:
    """The token set of a method that does not read the question; see `derived_for`."""
    return derived_for(compressor, found, [found.features])[0]


def derived_for(
    compressor: Compressor,
    found: ReadFeatures,
    asked: Sequence[VisualFeatures],
    started: float | None = None,
) -> list[Entry]:
    """The token sets of a method, one per question, in host memory.

    Args:
        compressor: Compressor of the method.
        found: Features of the clip, on any device.
        asked: The same features with each question.
        started: `time.perf_counter()` before the questions were added; `None` for now.

    Raises:
        NotFiniteError: If merging finite tokens gave NaN or infinity.
    """
    started = time.perf_counter() if started is None else started
    times = found.decode_video_ms, found.encode_ms
    return finished(compressor.compress_for(asked), times, started)


def finished(
    videos: Sequence[CompressedVideo], times: tuple[float, float], started: float
) -> list[Entry]:
    """The token sets that a method made of features, in host memory.

    Args:
        videos: Results of the method, on any device.
        times: Milliseconds to decode and to encode the clip.
        started: `time.perf_counter()` when the method was called.

    Raises:
        NotFiniteError: If merging finite tokens gave NaN or infinity.
    """
    if videos[-1].tokens.is_cuda:
        torch.cuda.synchronize(videos[-1].tokens.device)
    ms = (time.perf_counter() - started) * 1000 / len(videos)
    for tokens in (video.tokens for video in videos):
        # A finite sum shows at once that all tokens are finite; else it may have overflowed itself.
        if not tokens.sum(dtype=torch.float32).isfinite() and not tokens.isfinite().all():
            dtype = str(tokens.dtype).removeprefix("torch.")
            raise NotFiniteError(
                f"tokens that this method merged are NaN or infinite in {dtype}; set model.dtype "
                "to float32 or bfloat16"
            )
    return [Entry(on_cpu(video), *times, ms) for video in videos]


def serves(compressor: Compressor, stored: frozenset[str] | set[str]) -> bool:
    """Whether a token set can be computed from the stored parts of a clip (`names.held_by`)."""
    return TOKENS in stored and compressor.needs <= stored


def compressor_of(settings: Mapping[str, Any]) -> Compressor | None:
    """The built-in compressor of a token cache's manifest; `None` for other methods."""
    identity = dict(settings.get("compressor") or {})
    cls = METHODS.get(str(identity.get("name")))
    if cls is None or not issubclass(cls, Compressor):
        return None
    names = {field.name for field in fields(cls) if field.init}
    # An inner method acts through the retention of the identity alone.
    options = {name: value for name, value in {**identity, "inner": None}.items() if name in names}
    try:
        found = cls(**options)
    except (ValueError, TypeError):
        return None
    return found if found.identity() == identity else None


def features_with(cache: TokenCache, compressor: Compressor) -> Callable[[str], ReadFeatures]:
    """Function that reads the stored features of a clip that a method needs, onto the CPU.

    Args:
        cache: The token cache of the method, in the same root as the features.
        compressor: The compressor of the method.

    Returns:
        Function of a clip's key; raises `FileNotFoundError` if not all of them are stored.
    """
    store = features_for(cache.root, cache.settings)
    parts = store.parts()

    def read(key: str) -> ReadFeatures:
        own = [part for part, keys in parts.items() if key in keys]
        if not serves(compressor, held_by(own)):
            raise MissingFileError(f"{cache.name}: the features of clip {key} are not stored")
        return store.read(key, own, compressor.needs)

    return read


def materialise(cache: TokenCache, report: Callable[[str, str | None], None]) -> None:
    """Store the token sets of a cache that could be computed from stored features.

    Args:
        cache: A token cache.
        report: Called with the key of each clip and, if it could not be stored, the problem.

    Raises:
        CacheError: If the cache is one of a method that does not come with this package.
    """
    store = features_for(cache.root, cache.settings)
    lacking = store.parts().get(TOKENS, set()) - cache.keys()
    if not lacking:
        return
    compressor = compressor_of(cache.settings)
    if compressor is None:
        raise CacheError("its method does not come with this version of tango-video")
    if compressor.question_field is not None:
        raise CacheError("its method reads the questions, which are not stored")
    read = features_with(cache, compressor)
    for key in sorted(lacking):
        problem = None
        try:
            found = read(key)
            cache.write(found.clip, derived(compressor, found))
        except (FileNotFoundError, CacheError) as error:
            problem = " ".join(str(error).split())
        report(key, problem)


def on_device(found: ReadFeatures, device: torch.device) -> ReadFeatures:
    """The features on a device; nothing is copied for the CPU."""
    parts = _tensors_of(found.features)
    moved: dict[str, Any] = {n: upload(part.contiguous(), device) for n, part in parts.items()}
    return replace(found, features=replace(found.features, **moved))


def on_cpu(record: T) -> T:
    """Copy the tensors of a token set or plan to host memory in one transfer."""
    parts: dict[str, torch.Tensor] = _tensors_of(record)
    drawing = getattr(record, "drawing", None)
    drawn: dict[str, torch.Tensor] = {} if drawing is None else _tensors_of(drawing)
    moved = iter(download_together([*parts.values(), *drawn.values()]))
    changes: dict[str, Any] = {name: next(moved) for name in parts}
    if drawing is not None:
        changes["drawing"] = replace(drawing, **{name: next(moved) for name in drawn})
    return replace(record, **changes)


def _tensors_of(record: object) -> dict[str, torch.Tensor]:
    """The attributes that are tensors, by name."""
    return {name: part for name, part in vars(record).items() if isinstance(part, torch.Tensor)}
