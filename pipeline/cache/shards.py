"""Many clips in one Parquet file, for object stores and quick listings.

`shard-<time>-<random>.parquet` holds a row group per clip; its footer lists their keys in
order, and its name contains the time of the newest clip. A shard never changes: if a clip in it is
damaged, a small file beside the shard, `<shard>.<key>.gone`, marks it as removed (a tombstone).

In an object store an index file lists the clips of all shards, so that a job is planned with one
request instead of one per shard. It is written after the shards and is only an optimisation: the
footers of shards that it does not list are read, and entries of removed shards are ignored.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.rows import CacheError, damage_named
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError, read_sealed, write_sealed
from tango_core.errors import InputError, MissingFileError

logger = logging.getLogger(__name__)

KEYS = "tango_clip_keys"
# Not `.parquet`, because readers of `*.parquet` expect clips.
INDEX = "shards.index"
_SHARD = re.compile(r"shard-(\d{8}T\d{6})-[0-9a-f]{8}\.parquet")
_TOMBSTONE = re.compile(r"(shard-\d{8}T\d{6}-[0-9a-f]{8}\.parquet)\.([^.]+)\.gone")
# Footers in memory; each takes about 13 kB per clip.
_FOOTERS = 4
_TIME = "%Y%m%dT%H%M%S"


def is_shard(name: str) -> bool:
    """Whether a file name is that of a shard."""
    return _SHARD.fullmatch(name) is not None


def tombstone_of(name: str) -> tuple[str, str] | None:
    """Shard and key that a tombstone marks; `None` for other files."""
    found = _TOMBSTONE.fullmatch(name)
    return (found[1], found[2]) if found else None


def shard_name(newest: datetime) -> str:
    """Name for a new shard.

    Args:
        newest: Time of the newest clip in the shard, with its time zone.
    """
    return f"shard-{newest.astimezone(UTC):{_TIME}}-{uuid.uuid4().hex[:8]}.parquet"


def shard_time(name: str) -> datetime:
    """Time of the newest clip in a shard, from its name."""
    return datetime.strptime(name.split("-")[1], _TIME).replace(tzinfo=UTC)


class Shards:
    """The shards of one cache; keeps the keys of all shards and the last few footers in memory.

    Safe to use from several threads.

    Args:
        storage: The cache's directory.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.unreadable: dict[str, str] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._footers: dict[str, pq.FileMetaData] = {}
        self._groups: dict[str, tuple[str, int]] = {}

    def __reduce__(self) -> tuple[type[Shards], tuple[Storage]]:
        """Pickle without footers; workers read those that they need."""
        return Shards, (self.storage,)

    def refresh(self, names: Iterable[str] | None = None) -> None:
        """Update the list of shards.

        Args:
            names: Files of the directory; `None` to list them.
        """
        names = sorted(self.storage.names() if names is None else names)
        unknown = any(is_shard(name) and name not in self._keys for name in names)
        if unknown and INDEX in names and not self.storage.is_local:
            self._keys = {**self._keys, **read_index(self.storage)}
        removed = {tombstone_of(name) for name in names}
        groups: dict[str, tuple[str, int]] = {}
        for name in filter(is_shard, names):  # by time: of two copies the later one counts
            for group, key in enumerate(self._keys_in(name)):
                if (name, key) not in removed:
                    groups[key] = (name, group)
        self._groups = groups

    def write_index(self) -> None:
        """Write the index of the shards that hold entries."""
        names = sorted(set(self.by_key().values()))
        keys = [self._keys[name] for name in names]
        shards = pa.array(np.repeat(names, list(map(len, keys))), pa.string())
        table = pa.table({"shard": shards, "key": pa.array(chain(*keys), pa.string())})
        write_sealed(table, self.storage, INDEX, self.storage.root.rpartition("-")[2])

    def by_key(self) -> dict[str, str]:
        """Name of the shard of every key."""
        return {key: name for key, (name, _) in self._groups.items()}

    def read(self, key: str, columns: Sequence[str] | None = None) -> tuple[pa.Table, str]:
        """Read the row of one entry, or some columns, in one request; also returns its shard.

        Raises:
            FileNotFoundError: If it is in no shard.
            CacheError: If the shard is damaged.
        """
        if key not in self._groups:
            self.refresh()
        if key not in self._groups:
            raise MissingFileError(f"{self.storage.path(key)}.parquet is not there")
        name, group = self._groups[key]
        with damage_named(self.storage.path(name)), self.storage.opened(name) as source:
            file = pq.ParquetFile(source, metadata=self._footer(name), pre_buffer=True)
            wanted = None if columns is None else list(columns)
            return file.read_row_group(group, wanted, use_threads=False), name

    def discard(self, key: str) -> None:
        """Mark a clip as missing, for this and all later readers."""
        if key not in self._groups:
            self.refresh()
        if key in self._groups:
            name, _ = self._groups[key]
            self._groups = {one: where for one, where in self._groups.items() if one != key}
            self.storage.write(f"{name}.{key}.gone", b"damaged")  # an empty file would be no file

    def _keys_in(self, name: str) -> tuple[str, ...]:
        """The entries in a shard, in order; none if it cannot be read."""
        if name in self._keys:
            return self._keys[name]
        try:
            with damage_named(self.storage.path(name)):
                footer = self._footer(name)
                keys = tuple(json.loads((footer.metadata or {})[KEYS.encode()]))
                if len(keys) != footer.num_row_groups:
                    raise InputError(f"{len(keys)} keys for {footer.num_row_groups} clips")
        except FileNotFoundError:
            return ()
        except CacheError as error:
            if name not in self.unreadable:
                logger.warning("%s; its clips are recomputed", error)
            self.unreadable[name] = str(error).partition("is damaged ")[2].strip("()")
            return ()
        self._keys = {**self._keys, name: keys}
        return keys

    def _footer(self, name: str) -> pq.FileMetaData:
        """Footer of a shard; a small cache suffices, because jobs read clips almost in order."""
        footer = self._footers.get(name)
        if footer is None:
            with self.storage.opened(name) as file:
                footer = pq.read_metadata(file)
            self._footers = {**dict(list(self._footers.items())[1 - _FOOTERS :]), name: footer}
        return footer


def read_index(storage: Storage) -> dict[str, tuple[str, ...]]:
    """Shard -> keys from the index; empty if there is no valid index."""
    try:
        table = read_sealed(storage, INDEX, must=True).table
    except FileNotFoundError:
        return {}
    except DamagedFileError as error:
        logger.warning("%s; the shards are read one by one", error)
        return {}
    pairs = zip(table["shard"].to_pylist(), table["key"].to_pylist(), strict=True)
    return {
        name: tuple(key for _, key in group) for name, group in groupby(pairs, lambda pair: pair[0])
    }
