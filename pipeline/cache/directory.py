"""A cache: a directory named by the settings in its manifest; and the token cache.

`<root>/<label>-<hash12>/` holds `manifest.json` (the settings behind the hash), entries in files of
their own, and shards with many entries. An entry becomes visible only when it is complete: a killed
writer leaves nothing visible, a resumed job only asks whether an entry exists, and two jobs may
fill one cache at once (both would write the same bytes).

`shard-<time>-<random>.parquet` holds a row group per clip; its footer lists their keys in order,
and its name contains the time of the newest clip. A shard never changes: if a clip in it is
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
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache import rows
from pipeline.cache.names import TOKENS, canonical_json, digest, entry_of, file_of, split
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError, read_sealed, write_sealed
from tango_core.errors import InputError, MissingFileError
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from tango_core.compressors.base import Compressor
    from tango_core.models.base import ModelSpec

MANIFEST = "manifest.json"
KIND = "features"
"""Key of a manifest: how a feature cache stores tokens, and whether the tokens of a token cache
were computed from rounded features."""
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
        if unknown and INDEX in names and self.storage.store is not None:
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

    def read(self, key: str) -> tuple[pa.Table, str]:
        """Read the row of one entry in one request; also returns its shard.

        Raises:
            FileNotFoundError: If it is in no shard.
            CacheError: If the shard is damaged.
        """
        if key not in self._groups:
            self.refresh()
        if key not in self._groups:
            raise MissingFileError(f"{self.storage.path(key)}.parquet is not there")
        name, group = self._groups[key]
        with rows.damage_named(self.storage.path(name)), self.storage.opened(name) as source:
            file = pq.ParquetFile(source, metadata=self._footer(name), pre_buffer=True)
            return file.read_row_group(group, use_threads=False), name

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
            with rows.damage_named(self.storage.path(name)):
                footer = self._footer(name)
                keys = tuple(json.loads((footer.metadata or {})[KEYS.encode()]))
                if len(keys) != footer.num_row_groups:
                    raise InputError(f"{len(keys)} keys for {footer.num_row_groups} clips")
        except FileNotFoundError:
            return ()
        except rows.CacheError as error:
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


class CacheDirectory:
    """Base of all caches.

    Args:
        root: Directory or URL that holds all caches.
        identity: JSON-able settings; equal identities share one directory.
        label: Readable prefix of the directory's name.
    """

    schema: ClassVar[pa.Schema]
    write_options: ClassVar[Mapping[str, Any]]

    @staticmethod
    def checked(table: pa.Table, key: str, cache: str) -> Any:
        """Rebuild an entry from its row and check it; see `rows.checked_tokens`."""
        raise NotImplementedError

    def __init__(self, root: str | Storage, identity: Mapping[str, Any], label: str) -> None:
        self.manifest = canonical_json({"format_version": rows.FORMAT_VERSION, **identity})
        self.name = f"{label}-{digest(self.manifest)}"
        self.root = Storage.at(root)
        self.storage = self.root.child(self.name)
        self.shards = Shards(self.storage)

    @classmethod
    def existing(cls, root: str | Storage, name: str) -> Self:
        """Open the cache in a directory, by the manifest in it.

        Raises:
            FileNotFoundError: If it has no manifest.
            CacheError: If the manifest cannot be read or does not match the directory's name.
        """
        storage = Storage.at(root).child(name)
        found = cls(root, read_manifest(storage), name.rpartition("-")[0])
        if found.name != name:
            where = storage.path(MANIFEST)
            raise rows.CacheError(f"{where} holds other settings than the directory's name says")
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """The content of the manifest."""
        return dict(json.loads(self.manifest))

    @property
    def hash(self) -> str:
        """The end of the directory's name."""
        return self.name.rpartition("-")[2]

    def prepare(self) -> None:
        """Write the manifest, or check an existing one.

        Raises:
            CacheError: If the directory was written with other settings.
            OSError: If it cannot be written to.
        """
        if not self.storage.exists(MANIFEST):
            try:
                self.storage.write(MANIFEST, self.manifest.encode())
            except OSError as error:
                where = self.root.location
                raise OSError(f"--cache {where} cannot be written to ({error})") from error
        elif canonical_json(read_manifest(self.storage)) != self.manifest:
            where = self.storage.root
            raise rows.CacheError(f"{where} holds other settings than its name says; delete it")

    def entries(self) -> set[str]:
        """Names of all entries, from one directory listing and the shards' footers."""
        names = self.storage.names()
        index = Shards(self.storage)  # forgotten at once: a plan looks into many caches
        index.refresh(names)
        files = {entry_of(n) for n in names if n.endswith(".parquet") and not is_shard(n)}
        return files | index.by_key().keys()

    def put(self, entry: str, table: pa.Table) -> None:
        """Write an entry to a single file, replacing an existing one."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **self.write_options)
        self.storage.write(file_of(entry), memoryview(sink.getvalue()))

    def row(self, entry: str, *, in_shard: bool | None = None) -> Any:
        """Read an entry and check it.

        Args:
            entry: Name of the entry.
            in_shard: Whether it is in a shard; `None` to look for a single file first and then in
                the shards, to which it may have been moved meanwhile.

        Raises:
            FileNotFoundError: If it does not exist.
            CacheError: If it is damaged.
        """
        where, data = self.storage.path(file_of(entry)), None
        if not in_shard:
            try:
                data = self.storage.read(file_of(entry))
            except FileNotFoundError:
                if in_shard is False:
                    raise
        if data is None:
            table, shard = self.shards.read(entry)
            where = f"{self.storage.path(shard)}, clip {entry},"
        with rows.damage_named(where):
            if data is not None:  # parsed directly, which is much faster than `read_table`
                with pq.ParquetFile(pa.BufferReader(data)) as file:
                    table = file.read(use_threads=False)
            return self.checked(table, split(entry)[0], self.hash)

    def discard(self, entry: str) -> None:
        """Remove one entry, so that the next job computes it again; no error if it is missing."""
        if self.storage.exists(file_of(entry)):
            self.storage.delete(file_of(entry))
        else:
            self.shards.discard(entry)


class TokenCache(CacheDirectory):
    """The token sets of one (model, sampling, compressor) setting, named by their clips."""

    schema = rows.SCHEMA
    write_options = rows.WRITE_OPTIONS
    checked = staticmethod(rows.checked_tokens)

    def keys(self) -> set[str]:
        """Keys of the clips whose token sets are stored here."""
        return {key for key, part in map(split, self.entries()) if part == TOKENS}

    def write(self, clip: rows.ClipIdentity, entry: rows.Entry) -> None:
        """Write the tokens of one clip, replacing an entry with the same key."""
        self.put(clip.key, rows.to_table(clip, entry, self.hash))

    def read(self, key: str) -> rows.Entry:
        """Read one token set and check it; for the errors see `row`."""
        found: rows.Entry = self.row(key).entry
        return found


def open_cache(
    root: str | Storage, model: ModelSpec, compressor: Compressor, *, from_int8: bool = False
) -> TokenCache:
    """The cache of one compressor on one model; equal settings always give the same directory.

    Args:
        root: Directory or URL of all caches.
        model: The Video LLM.
        compressor: The compressor that keeps the tokens.
        from_int8: Whether the tokens are computed from rounded features, which changes them.
    """
    options = compressor.identity()
    label = "-".join([short_name(model.name), f"{model.frames.num_frames}f", str(options["name"])])
    if compressor.retention < 1:
        label += f"-r{compressor.retention:g}"
    identity: dict[str, Any] = {"model": model.identity(), "compressor": options}
    if from_int8:
        identity[KIND] = rows.INT8
    return TokenCache(root, identity, label)


def read_manifest(storage: Storage) -> dict[str, Any]:
    """The settings in the manifest of a directory.

    Raises:
        FileNotFoundError: If it has no manifest.
        CacheError: If it cannot be read.
    """
    try:
        settings = json.loads(storage.read(MANIFEST))
        if not isinstance(settings, dict):
            raise InputError("it holds no settings")
    except ValueError as error:
        where = storage.path(MANIFEST)
        raise rows.CacheError(
            f"{where} is damaged ({error}); delete it, the next job writes it again"
        ) from error
    return settings
