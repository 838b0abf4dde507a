"""What lies under a cache root: which directories are token caches, and what is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline.cache import CacheError, TokenCache, read_clip
from pipeline.storage import Storage

MANIFEST = "manifest.json"
_FOLDER = re.compile(r".+-[0-9a-f]{12}")
_ENTRY = re.compile(r"[0-9a-f]{20}\.parquet")
_ASIDE = re.compile(r"\.[0-9a-f]{32}\.tmp")
_READERS = 8


@dataclass(frozen=True)
class CacheFolder:
    """One token cache as one listing shows it.

    Attributes:
        name: Of the directory.
        storage: The directory.
        cache: Opened by its manifest; `None` if that cannot be trusted.
        problem: Why it cannot; empty if it can.
        files: Everything in the directory, other people's files included.
    """

    name: str
    storage: Storage
    cache: TokenCache | None
    problem: str
    files: tuple[pafs.FileInfo, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The manifest's content; empty if it cannot be trusted."""
        return dict(json.loads(self.cache.manifest)) if self.cache else {}

    @cached_property
    def entries(self) -> tuple[pafs.FileInfo, ...]:
        """The files of clips, by name."""
        found = (f for f in self.files if f.size > 0 and _ENTRY.fullmatch(f.base_name))
        return tuple(sorted(found, key=lambda file: str(file.base_name)))

    @property
    def leftovers(self) -> tuple[pafs.FileInfo, ...]:
        """What killed writers and power failures left, or a live writer is busy with."""
        return tuple(
            file
            for file in self.files
            if _ASIDE.fullmatch(file.base_name)
            or (file.size == 0 and _ENTRY.fullmatch(file.base_name))
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the clips."""
        return sum(file.size for file in self.entries)

    @property
    def written(self) -> tuple[datetime, datetime] | None:
        """When the oldest and the newest clip were written; `None` where no times are kept."""
        times = [file.mtime for file in self.entries if file.mtime is not None]
        return (min(times), max(times)) if times else None

    def remove(self, name: str) -> None:
        """Remove a file of the cache; one that is gone already is fine."""
        assert name == MANIFEST or _ENTRY.fullmatch(name) or _ASIDE.fullmatch(name), name
        with suppress(FileNotFoundError):
            self.storage.delete(name)


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


def find_caches(root: str, patterns: Sequence[str] = ()) -> list[CacheFolder]:
    """List the token caches under a root, by name; one directory listing each.

    A directory counts if its name ends in a hash and if it holds the manifest behind that hash, or
    files that are named like clips.

    Args:
        root: Directory or URL that holds all caches.
        patterns: Names or shell patterns of those to list; none for all.

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
    folders = [_look_into(root, storage.child(name), name) for name in wanted]
    found = [folder for folder in folders if folder.cache or folder.entries]
    for pattern in patterns:
        if not any(fnmatchcase(folder.name, pattern) for folder in found):
            raise ValueError(
                f"no token cache in {root} is called {pattern!r}; "
                f"`tango cache ls --cache {root}` lists them"
            )
    return found


def _look_into(root: str, storage: Storage, name: str) -> CacheFolder:
    """One listing and the manifest."""
    cache, problem = None, ""
    try:
        cache = TokenCache.existing(root, name)
    except FileNotFoundError:
        problem = f"{MANIFEST} is missing; the next job with these settings writes it"
    except (CacheError, PermissionError) as error:
        problem = str(error).removeprefix(f"{storage.root}/")
    return CacheFolder(name, storage, cache, problem, tuple(storage.files()))


def count_tokens(folder: CacheFolder, at_most: int = 16) -> TokenCounts | None:
    """Mean token counts of some clips, spread evenly over the names; the tokens are not read.

    Args:
        folder: The cache.
        at_most: Files to open.

    Returns:
        `None` if no clip can be read.
    """
    entries = folder.entries
    step = max(1, -(-len(entries) // at_most))
    columns = ["num_tokens_kept", "num_tokens_total"]
    counts: list[Mapping[str, int]] = []
    for file in entries[::step]:
        # A damaged file is for `bad_entries` to name.
        with (
            suppress(OSError, pa.ArrowException, KeyError),
            folder.storage.filesystem.open_input_file(file.path) as source,
        ):
            rows = pq.ParquetFile(source).read(columns=columns).to_pylist()
            counts += [row for row in rows if set(columns) <= row.keys()]
    if not counts:
        return None
    kept, total = (fmean(row[column] for row in counts) for column in columns)
    return TokenCounts(kept, total, len(counts))


def bad_entries(folder: CacheFolder) -> Iterator[tuple[str, str | None]]:
    """Read every clip of a cache, several at once.

    Yields:
        Name of the file and what is wrong with it, `None` if nothing is; by name.
    """
    names = [file.base_name for file in folder.entries]
    readers = ThreadPoolExecutor(_READERS)
    try:
        yield from zip(names, readers.map(lambda name: _problem(folder, name), names), strict=True)
    finally:
        readers.shutdown(cancel_futures=True)


def _problem(folder: CacheFolder, name: str) -> str | None:
    """What is wrong with a clip's file; one that a job removed in the meantime is fine."""
    try:
        read_clip(folder.storage, name.removesuffix(".parquet"))
    except FileNotFoundError:
        return None
    except CacheError as error:
        return str(error).removeprefix(f"{folder.storage.path(name)} ")
    return None
