"""Base of all caches: a directory named by the settings in its manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.names import entry_of, file_of, split
from pipeline.cache.rows import FORMAT_VERSION, CacheError
from pipeline.cache.shards import Shards, damage_named, hash_of, is_shard
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.errors import InputError

MANIFEST = "manifest.json"

FoundRow = tuple[Callable[[], pa.Table], str, str, str]
"""Arguments of `rows.read_checked` and `feature_rows.read_row`."""


class CacheDirectory:
    """`<root>/<label>-<hash12>/` with `manifest.json`, entries in files of their own, and shards.

    A file becomes visible only when it is complete: a killed writer leaves nothing visible, and
    two jobs may fill one cache at once (both would write the same bytes).

    Args:
        root: Directory or URL that holds all caches.
        identity: JSON-able settings; equal identities share one directory.
        label: Readable prefix of the directory's name.
        clock: Clock for the dates of entries.
    """

    def __init__(
        self,
        root: str | Storage,
        identity: Mapping[str, Any],
        label: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.manifest = canonical_json({"format_version": FORMAT_VERSION, **identity})
        self.name = f"{label}-{digest(self.manifest)}"
        self.root = Storage.at(root)
        self.storage = self.root.child(self.name)
        self.shards = Shards(self.storage)
        self._clock = clock

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
            raise CacheError(
                f"{storage.path(MANIFEST)} holds other settings than the directory's name "
                f"says (their hash is {found.name.rpartition('-')[2]})"
            )
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """The content of the manifest."""
        return dict(json.loads(self.manifest))

    @property
    def hash(self) -> str:
        """The end of the directory's name."""
        return hash_of(self.storage)

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
                root = self.storage.location.removesuffix(f"/{self.name}")
                raise OSError(
                    f"--cache {root} cannot be written "
                    f"to ({error}); choose a directory that can, or free some space"
                ) from error
            return
        if canonical_json(read_manifest(self.storage)) != self.manifest:
            raise CacheError(
                f"{self.storage.root} was written with other settings than its name says; "
                "use another --cache directory or delete it"
            )

    def put(self, entry: str, table: pa.Table, options: Mapping[str, Any]) -> None:
        """Write an entry to a single file, replacing an existing one."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        self.storage.write(file_of(entry), memoryview(sink.getvalue()))

    def found(self, entry: str) -> FoundRow:
        """The row of an entry; see `find_row`."""
        return find_row(self.shards, entry)

    def discard_entry(self, entry: str) -> None:
        """Remove one entry; no error if it does not exist."""
        if self.storage.exists(file_of(entry)):
            self.storage.delete(file_of(entry))
        else:
            self.shards.discard(entry)

    def entries(self) -> set[str]:
        """Names of all entries, from one directory listing and the shards' footers."""
        names = self.storage.names()
        index = Shards(self.storage)  # forgotten at once: a plan looks into many caches
        index.refresh(names)
        files = {entry_of(n) for n in names if n.endswith(".parquet") and not is_shard(n)}
        return files | index.by_key().keys()


def find_row(shards: Shards, entry: str, *, in_shard: bool | None = None) -> FoundRow:
    """The row of an entry of a cache, to be parsed and checked.

    Args:
        shards: Shards of the cache.
        entry: Name of the entry.
        in_shard: Whether it is in a shard; `None` to look for a single file first and then in the
            shards, to which it may have been moved meanwhile.

    Raises:
        FileNotFoundError: If it does not exist.
        CacheError: If its shard is damaged.
    """
    storage, key = shards.storage, split(entry)[0]
    if not in_shard:
        try:
            data, where = storage.read(file_of(entry)), storage.path(file_of(entry))
            return lambda: _parsed(pa.BufferReader(data)), key, hash_of(storage), where
        except FileNotFoundError:
            if in_shard is False:
                raise
    table, shard = shards.read(entry)
    return lambda: table, key, hash_of(storage), f"{storage.path(shard)}, clip {entry},"


def read_columns(shards: Shards, entry: str, names: Sequence[str]) -> pa.Table:
    """Some columns of an entry of a cache, not checked; for the errors see `find_row`."""
    storage, file = shards.storage, file_of(entry)
    if not storage.exists(file):
        return shards.read(entry, names)[0]
    with damage_named(storage, file), storage.opened(file) as opened:
        return _parsed(opened, names)


def _parsed(source: pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Parse a Parquet file directly, which is much faster than `read_table`."""
    with pq.ParquetFile(source) as file:
        return file.read(None if columns is None else list(columns), use_threads=False)


def read_manifest(storage: Storage) -> dict[str, Any]:
    """What the manifest in a directory says, with a `CacheError` if it cannot be read."""
    try:
        settings = json.loads(storage.read(MANIFEST))
        if not isinstance(settings, dict):
            raise InputError("it holds no settings")
    except ValueError as error:
        raise CacheError(
            f"{storage.path(MANIFEST)} is damaged ({error}); "
            "delete it, the next job with these settings writes it again"
        ) from error
    return settings
