"""Find caches under a root, list, verify and compact their contents, and choose what to remove.

To compact a cache, a shard is written and read back before the files it was made of are removed. A
call that is killed in between leaves clips twice, which counts as once; the next call removes what
is left over. A job that planned with a clip's own file looks for the clip in the shards when the
file is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache import directory
from pipeline.cache.directory import INDEX, KEYS, MANIFEST, Shards, TokenCache
from pipeline.cache.features import FeatureCache, is_of_features
from pipeline.cache.names import PLAN, entry_of, file_of, is_entry_file, split
from pipeline.cache.rows import CacheError
from pipeline.storage import Storage
from pipeline.storage.objects import PARALLEL, Stored
from tango_core.errors import InputError, MissingFileError

R = TypeVar("R")

SHARD_BYTES = 256 * 10**6
# Every clip adds 1.3 kB to the footer, which readers must read completely.
MAX_CLIPS = 2000
_START = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDER = re.compile(r".+-[0-9a-f]{12}")
# Unfinished files, and files with plans, which an earlier release stored and this one never reads.
_UNUSED = re.compile(rf"\.[0-9a-f]{{32}}\.tmp|[0-9a-f]{{20}}-{PLAN}\.parquet")
_READERS = 8
# A running writer finishes a file within seconds.
LEFTOVER_AGE = timedelta(hours=1)


def _kind_of(name: str) -> str:
    """What a file of a cache is, by its name; "" for a file of another program."""
    if _UNUSED.fullmatch(name):
        return "unused"
    if is_entry_file(name):
        return "single"
    if directory.is_shard(name):
        return "shard"
    if directory.tombstone_of(name):
        return "tombstone"
    return "settings" if name in (MANIFEST, INDEX) else ""


@dataclass(frozen=True, order=True)
class EntryLocation:
    """Location of an entry.

    Attributes:
        entry: Name of the entry; see `names`.
        shard: Name of its shard; "" if it has a file of its own.
    """

    entry: str
    shard: str = ""

    @property
    def key(self) -> str:
        """Key of the clip."""
        return split(self.entry)[0]

    @property
    def part(self) -> str:
        """The part of the clip that it holds."""
        return split(self.entry)[1]

    @property
    def name(self) -> str:
        """For messages; the name of the entry's own file if it has one."""
        return f"{self.shard}#{self.entry}" if self.shard else file_of(self.entry)


@dataclass(frozen=True)
class CacheFolder:
    """One cache, as found by one directory listing.

    Attributes:
        name: Name of the directory.
        storage: The directory.
        cache: The cache; `None` if its manifest is missing or wrong.
        problem: Why the cache cannot be opened; empty if it can.
        files: All files in the directory, including those of other programs.
    """

    name: str
    storage: Storage
    cache: TokenCache | FeatureCache | None
    problem: str
    files: tuple[Stored, ...]

    @property
    def opened(self) -> TokenCache | FeatureCache:
        """The cache.

        Raises:
            InputError: If it cannot be opened.
        """
        if self.cache is None:
            raise InputError(f"{self.name}: {self.problem}")
        return self.cache

    @property
    def settings(self) -> dict[str, Any]:
        """The manifest's content; empty if the cache cannot be opened."""
        return self.cache.settings if self.cache else {}

    @property
    def holds_features(self) -> bool:
        """Whether it holds features instead of token sets."""
        return isinstance(self.cache, FeatureCache)

    def of_kind(self, *kinds: str) -> tuple[Stored, ...]:
        """The non-empty files of some kinds (`_kind_of`), by name; shards are then by age."""
        found = (file for file in self.files if file.size > 0 and _kind_of(file.name) in kinds)
        return tuple(sorted(found, key=lambda file: file.name))

    @cached_property
    def singles(self) -> tuple[Stored, ...]:
        """The files that hold one entry each, by name."""
        return self.of_kind("single")

    @cached_property
    def entries(self) -> tuple[Stored, ...]:
        """All files with entries."""
        return self.of_kind("single", "shard")

    @cached_property
    def index(self) -> Shards:
        """The shards with the keys of their entries."""
        index = self.cache.shards if self.cache else Shards(self.storage)
        if self.of_kind("shard"):
            index.refresh(file.name for file in self.files)
        return index

    @cached_property
    def locations(self) -> tuple[EntryLocation, ...]:
        """Locations of all entries, by name; an entry may be both in a file and in a shard."""
        singles = (EntryLocation(entry_of(file.name)) for file in self.singles)
        sharded = (EntryLocation(*one) for one in self.index.by_key().items())
        return tuple(sorted((*singles, *(one for one in sharded if one.part != PLAN))))

    @property
    def num_clips(self) -> int:
        """Number of clips."""
        return len({location.key for location in self.locations})

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(file.size for file in self.entries)

    @property
    def written(self) -> tuple[datetime, datetime] | None:
        """Times of the oldest and the newest entry; `None` if the file system has no times."""
        times = [time for file in self.entries if (time := written_at(file)) is not None]
        return (min(times), max(times)) if times else None

    def problem_of(self, location: EntryLocation) -> str | None:
        """What is wrong with an entry; `None` if it is fine or has been removed meanwhile."""
        found = _read(self, location.entry, bool(location.shard))
        return brief(found, self) if isinstance(found, CacheError) else None

    def discard(self, location: EntryLocation) -> None:
        """Remove one entry."""
        if location.shard:
            self.index.discard(location.entry)
        else:
            self.remove(location.name)

    def remove(self, name: str) -> None:
        """Remove a file of the cache; no error if it does not exist.

        Raises:
            InputError: If the file is not named like one of a cache: another program may own it.
        """
        if not _kind_of(name):
            raise InputError(f"{name} is no file of a token cache and stays")
        with suppress(FileNotFoundError):
            self.storage.delete(name)


def find_caches(root: str | Storage, patterns: Sequence[str] = ()) -> list[CacheFolder]:
    """List the token caches under a root, by name; one directory listing each.

    A directory counts if its name ends in a hash and if it holds the manifest for that hash, or
    files that are named like entries.

    Args:
        root: Directory or URL that holds all caches.
        patterns: Names or shell patterns of those to list; none for all.

    Raises:
        FileNotFoundError: If there is no such directory.
        InputError: If a pattern matches nothing.
    """
    storage = Storage.at(root)
    if not storage.is_folder():
        raise MissingFileError(
            f"--cache {root}: no such directory; name the one that a job filled (OUTPUT/cache)"
        )
    if storage.exists(MANIFEST):
        raise InputError(
            f"--cache {root} is one token cache; name the directory that holds it, and "
            f"{storage.root.rpartition('/')[2]} as the cache's name"
        )
    names = [name for name in storage.folders() if _FOLDER.fullmatch(name)]
    wanted = [n for n in names if not patterns or any(fnmatchcase(n, p) for p in patterns)]
    found = [one for one in (_look_into(storage, name) for name in wanted) if one is not None]
    for pattern in patterns:
        if not any(fnmatchcase(folder.name, pattern) for folder in found):
            raise InputError(
                f"no token cache in {root} is called {pattern!r}; see `tango cache ls`"
            )
    return found


def _look_into(root: Storage, name: str) -> CacheFolder | None:
    """List a directory and open its cache; `None` if it is no cache."""
    storage = root.child(name)
    try:
        files = tuple(storage.files())
        kind = FeatureCache if is_of_features(directory.read_manifest(storage)) else TokenCache
        return CacheFolder(name, storage, kind.existing(root, name), "", files)
    except PermissionError:
        problem = "may not be read by this user; see its permissions"
        return CacheFolder(name, storage, None, problem, ())
    except FileNotFoundError:
        problem = f"{MANIFEST} is missing; the next job with these settings writes it"
    except CacheError as error:
        problem = str(error).removeprefix(f"{storage.root}/")
    folder = CacheFolder(name, storage, None, problem, files)
    return folder if folder.entries else None


def written_at(file: Stored) -> datetime | None:
    """Time of the newest entry in a file; `None` if the file system has no times."""
    is_shard = directory.is_shard(file.name)
    return directory.shard_time(file.name) if is_shard else file.modified


def brief(error: CacheError, folder: CacheFolder) -> str:
    """Description of a damaged entry, without its location."""
    text = str(error)
    if text.startswith(folder.storage.root):
        text = text[len(folder.storage.root) :].partition(" ")[2]
        text = re.sub(r"^clip \S+ ", "", text)
    return text


def check_entries(folder: CacheFolder) -> Iterator[tuple[EntryLocation, str | None]]:
    """Read every entry of a cache, several at once; yields locations and problems by name."""
    locations = folder.locations if folder.cache else ()
    readers = ThreadPoolExecutor(_READERS)
    try:
        yield from zip(locations, readers.map(folder.problem_of, locations), strict=True)
    finally:
        readers.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Removal:
    """Files of one cache that can be removed.

    Attributes:
        folder: The cache.
        files: Files to remove.
        reason: Why they can be removed.
    """

    folder: CacheFolder
    files: tuple[Stored, ...]
    reason: str

    @property
    def num_bytes(self) -> int:
        """Bytes that are freed."""
        return sum(file.size for file in self.files)

    def apply(self) -> None:
        """Remove the files, and the directory if that leaves it empty."""
        for file in self.files:
            self.folder.remove(file.name)
        self.folder.storage.remove_if_empty()


def plan_removals(
    folders: Sequence[CacheFolder],
    now: datetime,
    older_than: timedelta | None = None,
    max_bytes: int | None = None,
    whole: bool = False,
) -> list[Removal]:
    """Determine what can be removed, without removing anything.

    Caches with an invalid manifest and files with unknown names are skipped. Where the file system
    has no modification times, all files count as new.

    Args:
        folders: Caches to look at.
        now: With its time zone.
        older_than: Remove caches to which nothing was written for this time.
        max_bytes: Then remove the oldest clips until the rest has at most this size.
        whole: Remove all given caches.
    """
    removals: list[Removal] = []
    kept: list[CacheFolder] = []
    for folder in (folder for folder in folders if folder.cache):
        # Unfinished and unused files, and single files that a power failure emptied.
        left = tuple(
            file
            for file in folder.files
            if (kind := _kind_of(file.name)) == "unused" or (kind == "single" and not file.size)
            if file.modified and now - file.modified > LEFTOVER_AGE
        )
        times = (written_at(file) or now for file in folder.entries or folder.of_kind("settings"))
        idle = now - max(times, default=now)
        if whole or (older_than is not None and idle > older_than):
            reason = "whole cache" if whole else f"whole cache, {idle.days} days without a write"
            files = (*folder.of_kind("single", "shard", "tombstone", "settings"), *left)
            removals.append(Removal(folder, files, reason))
            continue
        kept.append(folder)
        if left:
            removals.append(Removal(folder, left, "leftovers of killed writers or old releases"))
    if max_bytes is not None:
        removals += _oldest(kept, now, max_bytes)
    return removals


def _oldest(folders: Sequence[CacheFolder], now: datetime, max_bytes: int) -> list[Removal]:
    """Remove the oldest entries of all caches until the rest has at most `max_bytes`."""
    clips = [(written_at(f) or now, f.path, i, f) for i, o in enumerate(folders) for f in o.entries]
    surplus = sum(file.size for *_, file in clips) - max_bytes
    going: dict[int, list[Stored]] = {}
    for _, _, index, file in sorted(clips, key=lambda clip: clip[:2]):
        if surplus <= 0:
            break
        # The tombstones of a shard go with it.
        marks = folders[index].of_kind("tombstone")
        of_shard = (mark for mark in marks if mark.name.startswith(f"{file.name}."))
        going.setdefault(index, []).extend((file, *of_shard))
        surplus -= file.size
    reason = "oldest clips, to reach the size"
    return [Removal(folders[index], tuple(going[index]), reason) for index in sorted(going)]


def compact_cache(folder: CacheFolder) -> Iterator[tuple[str, str | None]]:
    """Merge entries in single files into shards of about 256 MB, ordered by age.

    Args:
        folder: The cache.

    Yields:
        (file name, `None`) for every removed file, and (file name, problem) for every file that is
        kept because of a problem.

    Raises:
        InputError: If the cache's manifest cannot be trusted.
    """
    shards = folder.opened.shards
    shards.refresh()
    in_shards = shards.by_key()
    entries = {entry_of(file.name): file for file in folder.singles}
    # Shard by shard, so that only a few footers stay in memory.
    doubles = sorted(entries.keys() & in_shards.keys(), key=lambda entry: in_shards[entry])
    for entry, problem in _for_each(_read_back_and_remove, folder, doubles):
        if problem is None:
            del entries[entry]
            yield file_of(entry), None
        else:
            shards.discard(entry)
    for batch in _batches(list(entries.values())):
        yield from _write_shard(folder, batch)
    if folder.storage.store is not None:  # a disk's footers cost nothing to read
        shards.refresh()
        if shards.by_key():
            shards.write_index()


def _batches(files: list[Stored]) -> Iterator[list[Stored]]:
    """Group files into shards, oldest first; a single remaining file is not merged."""
    batch: list[Stored] = []
    for file in sorted(files, key=lambda file: (written_at(file) or _START, file.name)):
        batch.append(file)
        if len(batch) == MAX_CLIPS or sum(one.size for one in batch) >= SHARD_BYTES:
            yield batch
            batch = []
    if len(batch) > 1:
        yield batch


def _write_shard(folder: CacheFolder, batch: list[Stored]) -> Iterator[tuple[str, str | None]]:
    """Write one shard, read it back, and remove its source files."""
    cache, storage = folder.opened, folder.storage
    times = [time for file in batch if (time := written_at(file)) is not None]
    name = directory.shard_name(max(times, default=datetime.now(UTC)))
    moved: list[str] = []
    with (
        storage.writing(name) as sink,
        pq.ParquetWriter(sink, cache.schema, **cache.write_options) as writer,
    ):
        for entry, table in _for_each(_read, folder, [entry_of(file.name) for file in batch]):
            if isinstance(table, CacheError):
                yield file_of(entry), brief(table, folder)
            elif table is None or set(table.schema.names) > set(cache.schema.names):
                continue  # moved by another call; large signals stay in files of their own
            elif not table.schema.equals(cache.schema):
                yield file_of(entry), "another program has written it, with other columns"
            else:
                writer.write_table(table)
                moved.append(entry)
        writer.add_key_value_metadata({KEYS: json.dumps(moved)})
    if not moved:
        folder.remove(name)
    cache.shards.refresh([name])
    for entry, problem in _for_each(_read_back_and_remove, folder, moved):
        yield file_of(entry), problem


def _read(folder: CacheFolder, entry: str, in_shard: bool = False) -> pa.Table | CacheError | None:
    """The row of an entry, `None` if it has been moved or removed meanwhile, or its error."""
    try:
        return folder.opened.row(entry, in_shard=in_shard).table
    except FileNotFoundError:
        return None
    except CacheError as error:
        return error


def _read_back_and_remove(folder: CacheFolder, entry: str) -> str | None:
    """Remove an entry's own file if its copy in a shard is valid, else return the problem."""
    copy = _read(folder, entry, in_shard=True)
    if not isinstance(copy, pa.Table):
        return f"its copy does not read back: {copy or 'it is gone'}"
    folder.remove(file_of(entry))
    return None


def _for_each(
    function: Callable[[CacheFolder, str], R], folder: CacheFolder, entries: Sequence[str]
) -> Iterator[tuple[str, R]]:
    """Yield entries with the results of a function, in a store of several at the same time.

    Few results are pending, because each may be as large as a clip's tokens.
    """
    if folder.storage.store is None:
        yield from ((entry, function(folder, entry)) for entry in entries)
        return
    with ThreadPoolExecutor(PARALLEL) as workers:
        for start in range(0, len(entries), PARALLEL):
            some = entries[start : start + PARALLEL]
            yield from zip(some, workers.map(partial(function, folder), some), strict=True)
