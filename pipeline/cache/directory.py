"""A cache: a directory named by the settings in its manifest; and the token cache.

`<root>/<label>-<hash12>/` holds `manifest.json` (the settings behind the hash), entries in files of
their own, and shards with many entries (`shards.py`). An entry becomes visible only when it is
complete: a killed writer leaves nothing visible, a resumed job only asks whether an entry exists,
and two jobs may fill one cache at once (both would write the same bytes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.names import TOKENS, entry_of, file_of, split
from pipeline.cache.rows import (
    FORMAT_VERSION,
    INT8,
    SCHEMA,
    WRITE_OPTIONS,
    CacheError,
    ClipIdentity,
    Entry,
    StoredClip,
    checked_tokens,
    damage_named,
    to_table,
)
from pipeline.cache.shards import Shards, is_shard
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.errors import InputError
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from tango_core.compressors.base import Compressor
    from tango_core.models.base import ModelSpec

MANIFEST = "manifest.json"
KIND = "features"
"""Key of a manifest: how a feature cache stores tokens, and whether the tokens of a token cache
were computed from rounded features."""


class CacheDirectory:
    """Base of all caches.

    Args:
        root: Directory or URL that holds all caches.
        identity: JSON-able settings; equal identities share one directory.
        label: Readable prefix of the directory's name.
        clock: Clock for the dates of entries.
    """

    schema: ClassVar[pa.Schema]
    write_options: ClassVar[Mapping[str, Any]]

    @staticmethod
    def checked(table: pa.Table, key: str, cache: str) -> Any:
        """Rebuild an entry from its row and check it; see `rows.checked_tokens`."""
        raise NotImplementedError

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
                raise OSError(
                    f"--cache {self.root.location} cannot be written "
                    f"to ({error}); choose a directory that can, or free some space"
                ) from error
        elif canonical_json(read_manifest(self.storage)) != self.manifest:
            raise CacheError(
                f"{self.storage.root} was written with other settings than its name says; "
                "use another --cache directory or delete it"
            )

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
        with damage_named(where):
            table = table if data is None else _parsed(pa.BufferReader(data))
            return self.checked(table, split(entry)[0], self.hash)

    def columns(self, entry: str, names: Sequence[str]) -> dict[str, Any]:
        """Some columns of an entry, not checked; for the errors see `row`."""
        file = file_of(entry)
        if self.storage.exists(file):
            with damage_named(self.storage.path(file)), self.storage.opened(file) as opened:
                table = _parsed(opened, names)
        else:
            table, _ = self.shards.read(entry, names)
        return dict(table.to_pylist()[0])

    def discard(self, entry: str) -> None:
        """Remove one entry, so that the next job computes it again; no error if it is missing."""
        if self.storage.exists(file_of(entry)):
            self.storage.delete(file_of(entry))
        else:
            self.shards.discard(entry)


class TokenCache(CacheDirectory):
    """The token sets of one (model, sampling, compressor) setting, named by their clips."""

    schema = SCHEMA
    write_options = WRITE_OPTIONS
    checked = staticmethod(checked_tokens)

    def keys(self) -> set[str]:
        """Keys of the clips whose token sets are stored here."""
        return {key for key, part in map(split, self.entries()) if part == TOKENS}

    def write(self, clip: ClipIdentity, entry: Entry) -> None:
        """Write the tokens of one clip, replacing an entry with the same key."""
        self.put(clip.key, to_table(clip, entry, self._clock.now(), self.hash))

    def read(self, key: str) -> Entry:
        """Read one token set and check it; for the errors see `row`."""
        found: StoredClip = self.row(key)
        return found.entry


def open_cache(
    root: str | Storage,
    model: ModelSpec,
    compressor: Compressor,
    clock: Clock = SYSTEM_CLOCK,
    *,
    from_int8: bool = False,
) -> TokenCache:
    """The cache of one compressor on one model; equal settings always give the same directory.

    Args:
        root: Directory or URL of all caches.
        model: The Video LLM.
        compressor: The compressor that keeps the tokens.
        clock: Clock for the dates of entries.
        from_int8: Whether the tokens are computed from rounded features, which changes them.
    """
    options = compressor.identity()
    label = "-".join([short_name(model.name), f"{model.frames.num_frames}f", str(options["name"])])
    if compressor.retention < 1:
        label += f"-r{compressor.retention:g}"
    identity: dict[str, Any] = {"model": model.identity(), "compressor": options}
    if from_int8:
        identity[KIND] = INT8
    return TokenCache(root, identity, label, clock)


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
        raise CacheError(
            f"{storage.path(MANIFEST)} is damaged ({error}); "
            "delete it, the next job with these settings writes it again"
        ) from error
    return settings


def _parsed(source: pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Parse a Parquet file directly, which is much faster than `read_table`."""
    with pq.ParquetFile(source) as file:
        return file.read(None if columns is None else list(columns), use_threads=False)
