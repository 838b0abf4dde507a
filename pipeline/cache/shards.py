"""Many clips in one Parquet file, so that listings and object stores stay quick.

`shard-<time>-<random>.parquet` holds a row group per clip; its footer names their keys, in order,
and says of which tokens they are (`contents.py`); its name says when the newest of them was
written. A shard never changes: a clip in it that turned out to be damaged gets a tombstone, a small
file beside the shard, `<shard>.<key>.gone`.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Container, Iterable
from datetime import UTC, datetime
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.contents import NO_MARKS, UNKNOWN, Content, Marks, unpacked
from pipeline.cache.footers import read_footer
from pipeline.cache.index import INDEX, read_index
from pipeline.cache.names import split
from pipeline.cache.places import RowPlace, damage_named
from pipeline.cache.sealed_rows import CacheError
from pipeline.storage import Storage

logger = logging.getLogger(__name__)

KEYS = "tango_clip_keys"
MARKS = "tango_tokens"
_SHARD = re.compile(r"shard-(\d{8}T\d{6})-[0-9a-f]{8}\.parquet")
_TOMBSTONE = re.compile(r"(shard-\d{8}T\d{6}-[0-9a-f]{8}\.parquet)\.([^.]+)\.gone")
# One takes about 13 kB of memory per clip.
_FOOTERS = 4
_TIME = "%Y%m%dT%H%M%S"


def is_shard(name: str) -> bool:
    """Whether a file is named like a shard."""
    return _SHARD.fullmatch(name) is not None


def tombstone_of(name: str) -> tuple[str, str] | None:
    """Shard and key of a tombstone; `None` if the file is of another kind."""
    found = _TOMBSTONE.fullmatch(name)
    return (found[1], found[2]) if found else None


def shard_name(newest: datetime) -> str:
    """A new name.

    Args:
        newest: When the newest clip of the shard was written, with its time zone.
    """
    return f"shard-{newest.astimezone(UTC):{_TIME}}-{uuid.uuid4().hex[:8]}.parquet"


def shard_time(name: str) -> datetime:
    """When the newest clip of a shard was written."""
    return datetime.strptime(name.split("-")[1], _TIME).replace(tzinfo=UTC)


def hash_of(storage: Storage) -> str:
    """The hash at the end of the name of a cache's directory."""
    return storage.root.rstrip("/").rpartition("-")[2]


class Shards:
    """The shards of one cache. What is in them stays in memory, of their footers only the last few.

    Args:
        storage: The cache's directory.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.unreadable: dict[str, str] = {}
        self._contents: dict[str, Content] = {}
        self._seen: list[str] = []
        self._footers: dict[str, pq.FileMetaData] = {}
        self._groups: dict[str, tuple[str, int]] = {}

    def __reduce__(self) -> tuple[type[Shards], tuple[Storage]]:
        """Workers read the footers themselves, if they need any."""
        return Shards, (self.storage,)

    def apart(self) -> Shards:
        """The same for another thread; what it learns from now on is its own."""
        other = Shards(self.storage)
        other.unreadable, other._contents = dict(self.unreadable), dict(self._contents)
        other._seen, other._footers = list(self._seen), dict(self._footers)
        other._groups = dict(self._groups)
        return other

    def refresh(self, names: Iterable[str] | None = None) -> None:
        """Look again at which shards there are.

        Args:
            names: Files of the directory; `None` to list them.
        """
        names = sorted(self.storage.names() if names is None else names)
        if (
            not self.storage.is_local
            and INDEX in names
            and any(is_shard(n) and n not in self._contents for n in names)
        ):
            self._contents |= read_index(self.storage)
        removed = {tombstone_of(name) for name in names}
        groups: dict[str, tuple[str, int]] = {}
        self._seen = list(filter(is_shard, names))
        for name in self._seen:  # by time: of two copies the later one counts
            for group, key in enumerate(self._entries_of(name)):
                if (name, key) not in removed:
                    groups[key] = (name, group)
        self._groups = groups

    def contents(self) -> dict[str, Content]:
        """What is in every shard that the last `refresh` saw, with what has a tombstone."""
        return {name: self._contents[name] for name in self._seen if name in self._contents}

    def marks(self, without: Container[str] = ()) -> Marks:
        """Of which tokens the entries are that the last `refresh` saw, of those that have marks.

        Args:
            without: Entries to leave out.
        """
        held = self.contents()
        if not any(content.marks.any() for content in held.values()):
            return NO_MARKS
        lengths = [len(content.entries) for content in held.values()]
        starts = dict(zip(held, np.cumsum([0, *lengths]).tolist(), strict=False))
        where = (starts[name] + group for name, group in self._groups.values())
        at = np.fromiter(where, np.int64, len(self._groups))
        values = np.concatenate([content.marks for content in held.values()])[at]
        own = np.array([entry not in without for entry in self._groups], dtype=bool)
        chosen = own & (values != UNKNOWN)
        keys = [split(entry)[0] for entry in compress(self._groups, chosen)]
        return Marks(pa.array(keys, pa.string()), values[chosen])

    def by_key(self) -> dict[str, str]:
        """Name of the shard of every key."""
        return {key: name for key, (name, _) in self._groups.items()}

    def place_of(self, key: str) -> RowPlace:
        """Where the row of one entry is.

        Raises:
            FileNotFoundError: If it is in no shard.
            CacheError: If the shard is damaged.
        """
        if key not in self._groups:
            self.refresh()
        if key not in self._groups:
            raise FileNotFoundError(f"{self.storage.path(key)}.parquet is not there")
        name, group = self._groups[key]
        with damage_named(self.storage, name):
            return RowPlace(self.storage, name, self._footer(name), group)

    def discard(self, key: str) -> None:
        """Make a clip a miss, here and for every later reader."""
        if key not in self._groups:
            self.refresh()
        if key in self._groups:
            name, _ = self._groups.pop(key)
            self.storage.write(f"{name}.{key}.gone", b"damaged")  # an empty file would be no file

    def _entries_of(self, name: str) -> tuple[str, ...]:
        """The entries in a shard, in order; none if it cannot be read."""
        if name in self._contents:
            return self._contents[name].entries
        try:
            with damage_named(self.storage, name):
                content = _content(self._footer(name))
        except FileNotFoundError:
            return ()
        except CacheError as error:
            if name not in self.unreadable:
                logger.warning("%s; its clips are made again", error)
            self.unreadable[name] = str(error).partition("cannot be read: ")[2]
            return ()
        self._contents[name] = content
        return content.entries

    def _footer(self, name: str) -> pq.FileMetaData:
        """Where in a shard the clips are. Jobs ask for clips nearly in the order of the shards."""
        footer = self._footers.get(name)
        if footer is None:
            with self.storage.opened(name) as file:
                footer = read_footer(file).metadata
            self._footers = {**dict(list(self._footers.items())[1 - _FOOTERS :]), name: footer}
        return footer


def _content(footer: pq.FileMetaData) -> Content:
    """What the footer of a shard says is in it, with whatever a damaged one leads to."""
    said = footer.metadata or {}
    entries = tuple(json.loads(said[KEYS.encode()]))
    packed = said.get(MARKS.encode())
    marks = np.full(len(entries), UNKNOWN, np.uint64) if packed is None else unpacked(packed)
    for number, what in ((len(entries), "keys"), (len(marks), "marks")):
        if number != footer.num_row_groups:
            raise ValueError(f"{number} {what} for {footer.num_row_groups} clips")
    return Content(entries, marks)
