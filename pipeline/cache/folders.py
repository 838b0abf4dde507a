"""Find caches under a root, list their contents and verify them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean
from typing import Any

import pyarrow.fs as pafs

from pipeline.cache.directory import MANIFEST, find_row, read_columns, read_manifest
from pipeline.cache.feature_rows import FeatureRow, read_row
from pipeline.cache.features import FeatureCache, is_of_features
from pipeline.cache.names import PLAN, TOKENS, entry_of, file_of, is_entry_file, split
from pipeline.cache.rows import CacheError, StoredClip, read_checked
from pipeline.cache.shards import INDEX, Shards, is_shard, shard_time, tombstone_of
from pipeline.cache.tokens import TokenCache
from pipeline.storage import Storage
from tango_core.errors import InputError, MissingFileError

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
        """The files of one entry each, by name."""
        return self._named(lambda name: is_entry_file(name) and not _is_plan(entry_of(name)))

    @cached_property
    def old_plans(self) -> tuple[pafs.FileInfo, ...]:
        """Files with nothing but plans, which earlier releases stored and this one never reads."""
        singles = self._named(lambda name: is_entry_file(name) and _is_plan(entry_of(name)))
        keys = self.index.keys_by_shard(file.base_name for file in self.shards)
        full = [f for f in self.shards if all(map(_is_plan, keys.get(f.base_name, ("",))))]
        return (*singles, *full)

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
        index = self.cache.shards if self.cache else Shards(self.storage)
        if self.shards:
            names = [file.base_name for file in self.files]
            index.refresh(name for name in names if not (self.by_footers and name == INDEX))
        return index

    @cached_property
    def locations(self) -> tuple[ClipLocation, ...]:
        """Where the entries are, by name; an entry may be there twice."""
        singles = (ClipLocation(entry_of(f.base_name), None) for f in self.singles)
        sharded = (
            ClipLocation(entry, name)
            for entry, name in self.index.by_key().items()
            if not _is_plan(entry)
        )
        return tuple(sorted((*singles, *sharded), key=lambda one: (one.entry, one.shard or "")))

    @property
    def num_clips(self) -> int:
        """How many clips there are."""
        return len({clip.key for clip in self.locations})

    @property
    def num_bytes(self) -> int:
        """Bytes of the clips."""
        return sum(file.size for file in self.entries)

    @property
    def written(self) -> tuple[datetime, datetime] | None:
        """When the oldest and the newest clip were written; `None` where no times are kept."""
        times = [time for file in self.entries if (time := written_at(file)) is not None]
        return (min(times), max(times)) if times else None

    def row(self, entry: str, *, in_shard: bool) -> StoredClip | FeatureRow:
        """Read one entry, all of its bytes, and check it.

        Raises:
            FileNotFoundError: If it has gone.
            CacheError: If it is damaged.
        """
        found = find_row(self.index, entry, in_shard=in_shard)
        return read_row(*found) if self.holds_features else read_checked(*found)

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
            raise InputError(f"{name} is no file of a token cache and stays")
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
        raise MissingFileError(
            f"--cache {root}: no such directory; name the one that `tango precompute` or another "
            "job filled, OUTPUT/cache if it was given none"
        )
    if storage.exists(MANIFEST):
        raise InputError(
            f"--cache {root} is one token cache; name the directory that holds it, and "
            f"{storage.root.rpartition('/')[2]} as the cache's name"
        )
    names = [name for name in storage.folders() if _FOLDER.fullmatch(name)]
    wanted = [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]
    folders = [_look_into(storage, name, by_footers) for name in wanted]
    found = [one for one in folders if one.cache or one.is_closed or one.entries]
    for pattern in patterns:
        if not any(fnmatchcase(folder.name, pattern) for folder in found):
            raise InputError(
                f"no token cache in {root} is called {pattern!r}; "
                f"`tango cache ls --cache {root}` lists them"
            )
    return found


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


def _is_plan(entry: str) -> bool:
    return split(entry)[1] == PLAN


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
    entries = [location for location in folder.locations if location.part == TOKENS]
    counts = []
    for location in entries[:: max(1, -(-len(entries) // at_most))]:
        with suppress(CacheError, FileNotFoundError):  # a bad one is for `check_clips` to name
            counts.append(_counts(folder, location.entry))
    if not counts:
        return None
    kept, total = (fmean(column) for column in zip(*counts, strict=True))
    return TokenCounts(kept, total, len(counts))


def _counts(folder: CacheFolder, entry: str) -> tuple[int, int]:
    """Kept tokens and all tokens of a clip."""
    if folder.holds_features:
        frames, cells, *_ = read_columns(folder.index, entry, ["shape"])["shape"][0].as_py()
        return frames * cells, frames * cells
    names = ["num_tokens_kept", "num_tokens_total"]
    (row,) = read_columns(folder.index, entry, names).to_pylist()
    return row[names[0]], row[names[1]]


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
        row = folder.row(location.entry, in_shard=location.shard is not None)
        return CheckedClip(location, sealed=row.sealed)
    except FileNotFoundError:
        return CheckedClip(location)
    except CacheError as error:
        return CheckedClip(location, brief(error, folder))
