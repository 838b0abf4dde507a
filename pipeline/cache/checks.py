"""What reading a cache shows: whether its clips are good, and how many tokens they have."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from pipeline.cache.feature_rows import FeatureRow
from pipeline.cache.features import FeatureCache
from pipeline.cache.folders import CacheFolder, ClipLocation, brief
from pipeline.cache.names import TOKENS
from pipeline.cache.plans import StoredPlan
from pipeline.cache.rows import CacheError
from pipeline.cache.tokens import TokenCache

_READERS = 8


@dataclass(frozen=True)
class TokenCounts:
    """Tokens per clip.

    Attributes:
        kept: Mean number of tokens that were kept.
        total: Mean number before compression.
        num_clips: Clips that were opened for it.
    """

    kept: float
    total: float
    num_clips: int


def count_tokens(folder: CacheFolder, at_most: int = 16) -> TokenCounts | None:
    """Mean token counts of some clips, spread evenly over the keys.

    Args:
        folder: The cache.
        at_most: Clips to read.

    Returns:
        `None` if no clip can be read.
    """
    step = max(1, -(-len(folder.locations) // at_most))
    counts = []
    for location in folder.locations[::step]:
        with suppress(CacheError, FileNotFoundError):  # a bad one is for `check_clips` to name
            counts += _counts(folder, location)
    if not counts:
        return None
    kept, total = (fmean(column) for column in zip(*counts, strict=True))
    return TokenCounts(kept, total, len(counts))


def _counts(folder: CacheFolder, location: ClipLocation) -> list[tuple[int, int]]:
    """Kept tokens and all tokens of a clip; nothing for an entry without tokens."""
    if isinstance(folder.cache, FeatureCache):  # all tokens of a clip are too many to read
        if location.part != TOKENS:
            return []
        num_tokens = folder.cache.layout(location.key).num_tokens
        return [(num_tokens, num_tokens)]
    row = folder.row(location)
    assert not isinstance(row, FeatureRow)
    tokens = row.entry.plan if isinstance(row, StoredPlan) else row.entry.video
    return [(tokens.num_kept, tokens.num_total)]


@dataclass(frozen=True)
class CheckedClip:
    """What reading a clip showed.

    Attributes:
        location: Of the clip.
        problem: What is wrong with it; `None` if nothing is.
        sealed: See `StoredClip`; `True` for a clip that could not be read.
    """

    location: ClipLocation
    problem: str | None = None
    sealed: bool = True


def check_clips(folder: CacheFolder) -> Iterator[CheckedClip]:
    """Read every clip of a cache, several at once; by key."""
    readers = ThreadPoolExecutor(_READERS)
    try:
        yield from readers.map(lambda location: _check(folder, location), folder.locations)
    finally:
        readers.shutdown(cancel_futures=True)


def _check(folder: CacheFolder, location: ClipLocation) -> CheckedClip:
    """Read a clip; one that a job removed in the meantime is fine."""
    try:
        row = folder.row(location)
        problem = _without_features(folder, row) if isinstance(row, StoredPlan) else None
        return CheckedClip(location, problem, sealed=row.sealed)
    except FileNotFoundError:
        return CheckedClip(location)
    except CacheError as error:
        return CheckedClip(location, brief(error, folder))


def _without_features(folder: CacheFolder, stored: StoredPlan) -> str | None:
    """What is wrong with the features that a plan is for; `None` if nothing is."""
    assert isinstance(folder.cache, TokenCache)
    features = folder.cache.features
    if features is None or features.name != stored.entry.features:
        return f"it is a plan for {stored.entry.features}, which is not that of its settings"
    try:
        if features.layout(stored.clip.key).digest != stored.entry.tokens_digest:
            return f"it is a plan for other tokens than {features.name} holds"
    except FileNotFoundError:
        return f"it is a plan, and {features.name} no longer holds the clip"
    except CacheError as error:
        return f"it is a plan, and its features are damaged: {error}"
    return None
