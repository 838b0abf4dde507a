"""Choose cache entries to remove when the disk is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.cache.directory import MANIFEST
from pipeline.cache.folders import CacheFolder, written_at
from pipeline.cache.shards import INDEX
from pipeline.storage.objects import Stored
from tango_core.errors import InputError

# A running writer finishes a file within seconds.
LEFTOVER_AGE = timedelta(hours=1)


@dataclass(frozen=True)
class Removal:
    """Files of one cache that can be removed.

    Attributes:
        folder: The cache.
        files: Files to remove, including the manifest if `whole`.
        reason: Why they can be removed.
        whole: Whether the whole cache is removed, with its directory.
    """

    folder: CacheFolder
    files: tuple[Stored, ...]
    reason: str
    whole: bool = False

    @property
    def num_bytes(self) -> int:
        """Bytes that are freed."""
        return sum(file.size for file in self.files)

    def apply(self) -> None:
        """Remove the files, and the directory of a whole cache if it is empty then."""
        for file in self.files:
            self.folder.remove(file.name)
        if self.whole:  # other programs may keep files there, or a job may write to it again
            self.folder.storage.remove_if_empty()


def plan_removals(
    folders: Sequence[CacheFolder],
    now: datetime,
    older_than: timedelta | None = None,
    max_bytes: int | None = None,
    whole: bool = False,
) -> list[Removal]:
    """Determine what can be removed, without removing anything.

    Caches with an invalid manifest and files with unknown names are skipped.

    Args:
        folders: Caches to look at.
        now: With its time zone.
        older_than: Remove caches to which nothing was written for this time.
        max_bytes: Then remove the oldest clips until the rest has at most this size.
        whole: Remove all given caches.

    Raises:
        InputError: If ages are needed and the file system has no modification times.
    """
    removals: list[Removal] = []
    kept: list[CacheFolder] = []
    for folder in (folder for folder in folders if folder.cache):
        left = tuple(f for f in folder.leftovers if f.modified and now - f.modified > LEFTOVER_AGE)
        idle = None if older_than is None else _idle(folder, now)
        if whole or (older_than is not None and idle is not None and idle > older_than):
            reason = (
                "whole cache" if idle is None else f"whole cache, {idle.days} days without a write"
            )
            tombstones = folder.tombstones_of(folder.shards)
            others = (*tombstones, *left, *_manifest(folder))
            removals.append(Removal(folder, (*folder.entries, *others), reason, whole=True))
            continue
        kept.append(folder)
        if left:
            removals.append(Removal(folder, left, "leftovers of killed writers or old releases"))
    if max_bytes is not None:
        removals += _oldest(kept, max_bytes)
    return removals


def _manifest(folder: CacheFolder) -> tuple[Stored, ...]:
    """The manifest and the index of the shards, if they exist."""
    return tuple(file for file in folder.files if file.name in (MANIFEST, INDEX))


def _idle(folder: CacheFolder, now: datetime) -> timedelta:
    """Time since the last write to a cache."""
    times = [written_at(file) for file in folder.entries or _manifest(folder)]
    known = [time for time in times if time is not None]
    if not known:
        raise InputError(_no_times(folder))
    return now - max(known)


def _oldest(folders: Sequence[CacheFolder], max_bytes: int) -> list[Removal]:
    """Remove the oldest entries of all caches until the rest has at most `max_bytes`."""
    clips: list[tuple[datetime, str, CacheFolder, Stored]] = []
    for folder in folders:
        for file in folder.entries:
            time = written_at(file)
            if time is None:
                raise InputError(_no_times(folder))
            clips.append((time, file.path, folder, file))
    surplus = sum(clip[-1].size for clip in clips) - max_bytes
    going: dict[str, list[Stored]] = {}
    for _, _, folder, file in sorted(clips, key=lambda clip: clip[:2]):
        if surplus <= 0:
            break
        # The tombstones of a shard go with it.
        going.setdefault(folder.name, []).extend((file, *folder.tombstones_of([file])))
        surplus -= file.size
    reason = "oldest clips, to reach the size"
    return [Removal(f, tuple(going[f.name]), reason) for f in folders if f.name in going]


def _no_times(folder: CacheFolder) -> str:
    """Error message for a file system without modification times."""
    return (
        f"{folder.storage.root}: this file system has no modification times, so "
        "the age of entries is unknown; remove caches by --name"
    )
