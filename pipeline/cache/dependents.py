"""Plans and the features that they need: which go with which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow.fs as pafs

from pipeline.cache.folders import CacheFolder
from pipeline.cache.names import PLAN, TOKENS, entry_of, split
from pipeline.cache.sealed_rows import (
    CacheError,
)
from pipeline.cache.tokens import TokenCache, tokens_in


@dataclass(frozen=True)
class Dependents:
    """Plans that are useless without certain features.

    Attributes:
        plans: How many token sets.
        caches: In how many token caches.
    """

    plans: int
    caches: int


def dependents_of(
    features: CacheFolder, files: Sequence[pafs.FileInfo], folders: Sequence[CacheFolder]
) -> Dependents:
    """Plans that need what is in some files of a feature cache, and have no tokens beside them.

    Args:
        features: The feature cache.
        files: Some of its files.
        folders: All caches of the root.
    """
    names = {file.base_name for file in files}
    keys = {
        one.key
        for one in features.locations
        if one.part == TOKENS and (one.shard or one.name) in names
    }
    counts = [
        len(plans_in(folder) & keys)
        for folder in folders
        if isinstance(folder.cache, TokenCache)
        and folder.cache.features is not None
        and folder.cache.features.name == features.name
    ]
    return Dependents(sum(counts), sum(count > 0 for count in counts))


def plans_in(folder: CacheFolder) -> set[str]:
    """Keys of the clips of which a token cache holds nothing but a plan."""
    parts: dict[str, set[str]] = {TOKENS: set(), PLAN: set()}
    for location in folder.locations:
        parts.setdefault(location.part, set()).add(location.key)
    return parts[PLAN] - parts[TOKENS]


def orphans_in(folder: CacheFolder) -> tuple[pafs.FileInfo, ...]:
    """The files of single plans whose features have gone; jobs take those clips for missing."""
    files = [file for file in folder.singles if split(entry_of(file.base_name))[1] == PLAN]
    if not files or not isinstance(folder.cache, TokenCache) or folder.cache.features is None:
        return ()
    there = tokens_in(folder.cache.features).keys
    return tuple(file for file in files if split(entry_of(file.base_name))[0] not in there)


def materialise(folder: CacheFolder, report: Callable[[str, str | None], None]) -> None:
    """Put the tokens of every plan of a cache in its place.

    Args:
        folder: A token cache.
        report: Receives the name of each plan and, if it stays a plan, what is wrong with it.
    """
    assert isinstance(folder.cache, TokenCache)
    for location in folder.locations:
        if location.part != PLAN:
            continue
        problem = None
        try:
            stored = folder.read(location)
            folder.cache.write(stored.clip, stored.entry)
            folder.cache.read_tokens(location.key)  # what was written can be read
            with suppress(FileNotFoundError):
                folder.discard(location)
        except FileNotFoundError:
            problem = "it was removed in the meantime"
        except CacheError as error:
            problem = str(error)
        report(location.name, problem)
