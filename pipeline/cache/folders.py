"""Token caches under a root: which directories are caches, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import pyarrow.fs as pafs

from pipeline.cache.directory import MANIFEST, read_manifest
from pipeline.cache.features import FeatureCache, is_of_features
from pipeline.cache.index import INDEX
from pipeline.cache.names import PLAN, entry_of, file_of, is_entry_file, split
from pipeline.cache.plans import StoredPlan
from pipeline.cache.rows import StoredClip
from pipeline.cache.sealed_rows import (
    CacheError,
)
from pipeline.cache.shards import Shards, is_shard, shard_time, tombstone_of
from pipeline.cache.stored import StoredRow, read_entry
from pipeline.cache.tokens import TokenCache
from pipeline.storage import Storage

_FOLDER = re.compile(r".+-[0-9a-f]{12}")
_ASIDE = re.compile(r"\.[0-9a-f]{32}\.tmp")
_READERS = 8


@dataclass(frozen=True)
class ClipLocation:
    """Where an entry of a clip is.

    Attributes:
        entry: Name of the entry; see `names`.
        shard: Name of its shard; `None` if it has a file of its own.
    """

    entry: str
    shard: str | None

    @property
    def key(self) -> str:
        """Of the clip."""
        return split(self.entry)[0]

    @property
    def part(self) -> str:
        """What of the clip it holds."""
        return split(self.entry)[1]

    @property
    def name(self) -> str:
        """For messages; the name of the entry's own file if it has one."""
        return f"{self.shard}#{self.entry}" if self.shard else file_of(self.entry)


@dataclass(frozen=True)
class CacheFolder:
    """One cache as one listing shows it.

    Attributes:
        name: Of the directory.
        storage: The directory.
        cache: Opened by its manifest; `None` if that cannot be trusted.
        problem: Why it cannot; empty if it can.
        files: Everything in the directory, other people's files included.
        by_footers: Whether every shard is asked itself, whatever an index says of it.
        is_closed: Whether this user may not even list it.
    """

    name: str
    storage: Storage
    cache: TokenCache | FeatureCache | None
    problem: str
    files: tuple[pafs.FileInfo, ...]
    by_footers: bool = False
    is_closed: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The manifest's content; empty if it cannot be trusted."""
        return self.cache.settings if self.cache else {}

    @property
    def holds_features(self) -> bool:
        """Whether it holds what the encoder gave, and not token sets."""
        return isinstance(self.cache, FeatureCache)

    @cached_property
    def singles(self) -> tuple[pafs.FileInfo, ...]:
        """The files of one clip each, by name."""
        return self._named(lambda name: is_entry_file(name))

    @cached_property
    def shards(self) -> tuple[pafs.FileInfo, ...]:
        """The files of many clips each, by age."""
        return self._named(is_shard)

    @property
    def entries(self) -> tuple[pafs.FileInfo, ...]:
        """The files that hold clips."""
        return (*self.singles, *self.shards)

    @property
    def leftovers(self) -> tuple[pafs.FileInfo, ...]:
        """What killed writers and power failures left, or a live writer has not finished."""
        return tuple(
            file
            for file in self.files
            if _ASIDE.fullmatch(file.base_name)
            or (file.size == 0 and is_entry_file(file.base_name))
        )

    def tombstones_of(self, shards: Iterable[pafs.FileInfo]) -> tuple[pafs.FileInfo, ...]:
        """The tombstones of some shards' clips."""
        names = {file.base_name for file in shards}
        return self._named(lambda name: (tombstone := tombstone_of(name)) and tombstone[0] in names)

    @cached_property
    def index(self) -> Shards:
        """What is in the shards; their footers are read."""
        index = Shards(self.storage)
        if self.shards:
            names = [file.base_name for file in self.files]
            index.refresh(name for name in names if not (self.by_footers and name == INDEX))
        return index

    @cached_property
    def locations(self) -> tuple[ClipLocation, ...]:
        """Where the entries are, by name; an entry may be there twice."""
        singles = (ClipLocation(entry_of(f.base_name), None) for f in self.singles)
        sharded = (ClipLocation(entry, name) for entry, name in self.index.by_key().items())
        return tuple(sorted((*singles, *sharded), key=lambda one: (one.entry, one.shard or "")))

    @property
    def num_clips(self) -> int:
        """How many clips there are."""
        return len({clip.key for clip in self.locations})

    @property
    def num_plans(self) -> int:
        """How many clips are stored as plans."""
        return len({clip.key for clip in self.locations if clip.part == PLAN})

    @property
    def num_bytes(self) -> int:
        """Bytes of the clips."""
        return sum(file.size for file in self.entries)

    @property
    def written(self) -> tuple[datetime, datetime] | None:
        """When the oldest and the newest clip were written; `None` where no times are kept."""
        times = [time for file in self.entries if (time := written_at(file)) is not None]
        return (min(times), max(times)) if times else None

    def row(self, location: ClipLocation) -> StoredRow:
        """Read one entry as it is stored and check it; a plan is not applied.

        Raises:
            FileNotFoundError: If it has gone.
            CacheError: If it is damaged.
        """
        place = None if location.shard is None else self.index.place_of(location.entry)
        return read_entry(self.holds_features, location.entry, self.storage, place)

    def read(self, location: ClipLocation) -> StoredClip:
        """Read the token set of one clip and check it, a plan is applied; errors as of `row`."""
        row = self.row(location)
        if isinstance(row, StoredPlan):
            assert isinstance(self.cache, TokenCache)
            return self.cache.applied(row)
        if not isinstance(row, StoredClip):
            raise CacheError(f"{location.name} holds features and no token set")
        return row

    def discard(self, location: ClipLocation) -> None:
        """Make one entry a miss."""
        if location.shard is None:
            self.remove(location.name)
        else:
            self.index.discard(location.entry)

    def remove(self, name: str) -> None:
        """Remove a file of the cache; one that does not exist is no error.

        Raises:
            ValueError: If the file is not named like one of a cache: another program may own it.
        """
        ours = name in (MANIFEST, INDEX) or is_entry_file(name) or _ASIDE.fullmatch(name)
        if not (ours or is_shard(name) or tombstone_of(name)):
            raise ValueError(f"{name} is no file of a token cache and stays")
        with suppress(FileNotFoundError):
            self.storage.delete(name)

    def _named(self, is_wanted: Callable[[str], object]) -> tuple[pafs.FileInfo, ...]:
        """The non-empty files with certain names, by name."""
        found = (file for file in self.files if file.size > 0 and is_wanted(file.base_name))
        return tuple(sorted(found, key=lambda file: str(file.base_name)))


def find_caches(
    root: str | Storage, patterns: Sequence[str] = (), *, by_footers: bool = False
) -> list[CacheFolder]:
    """List the token caches under a root, by name; one directory listing each.

    A directory counts if its name ends in a hash and if it holds the manifest behind that hash, or
    files that are named like clips.

    Args:
        root: Directory or URL that holds all caches.
        patterns: Names or shell patterns of those to list; none for all.
        by_footers: See `CacheFolder`.

    Raises:
        FileNotFoundError: If there is no such directory.
        ValueError: If a pattern matches nothing.
    """
    storage = Storage.at(root)
    if not storage.is_folder():
        raise FileNotFoundError(
            f"--cache {root}: no such directory; name the one that `tango precompute` or another "
            "job filled, OUTPUT/cache if it was given none"
        )
    if storage.exists(MANIFEST):
        raise ValueError(
            f"--cache {root} is one token cache; name the directory that holds it, and "
            f"{storage.root.rpartition('/')[2]} as the cache's name"
        )
    names = [name for name in storage.folders() if _FOLDER.fullmatch(name)]
    wanted = [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]
    folders = [_look_into(storage, name, by_footers) for name in wanted]
    found = [one for one in folders if one.cache or one.is_closed or one.entries]
    for pattern in patterns:
        if not any(fnmatchcase(folder.name, pattern) for folder in found):
            raise ValueError(
                f"no token cache in {root} is called {pattern!r}; "
                f"`tango cache ls --cache {root}` lists them"
            )
    return found


def existing_caches(root: str | Storage, names: Iterable[str]) -> dict[str, CacheFolder]:
    """The caches with these names that are there, by name; the others are left out."""
    storage = Storage.at(root)
    there = set(storage.folders()) if storage.is_folder() else set()
    return {name: _look_into(storage, name, by_footers=False) for name in names if name in there}


def _look_into(root: Storage, name: str, by_footers: bool) -> CacheFolder:
    """One listing and the manifest; a directory that is closed to this user hides no other one."""
    folder = root.child(name)
    try:
        files = tuple(folder.files())
    except PermissionError:
        problem = "may not be read by this user; see its permissions"
        return CacheFolder(name, folder, None, problem, (), by_footers, is_closed=True)
    cache: TokenCache | FeatureCache | None = None
    problem = ""
    try:
        kind = FeatureCache if is_of_features(read_manifest(folder)) else TokenCache
        cache = kind.existing(root, name)
    except FileNotFoundError:
        problem = f"{MANIFEST} is missing; the next job with these settings writes it"
    except (CacheError, PermissionError) as error:
        problem = str(error).removeprefix(f"{folder.root}/")
    return CacheFolder(name, folder, cache, problem, files, by_footers)


def written_at(file: pafs.FileInfo) -> datetime | None:
    """When the newest clip of a file was written; `None` where no times are kept."""
    if is_shard(file.base_name):
        return shard_time(file.base_name)
    time: datetime | None = file.mtime
    return time


def brief(error: CacheError, folder: CacheFolder) -> str:
    """What is wrong with a clip whose place is named already."""
    text = str(error)
    if text.startswith(folder.storage.root):
        text = text[len(folder.storage.root) :].partition(" ")[2]
        text = re.sub(r"^clip \S+ ", "", text)
    return text
