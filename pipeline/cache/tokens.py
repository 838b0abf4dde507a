"""The token cache: what one compressor kept of every clip, as Parquet files that any reader opens.

`<root>/<readable-name>-<hash12>/` holds `manifest.json` (the settings behind the hash) and one
Parquet file per clip, named by the clip's key; `tango cache compact` puts many into one
(`shards.py`). A file becomes visible only when it is complete, so a resumed job only asks whether a
file exists: a killed writer leaves nothing visible, and two jobs may fill one cache at once (both
would write the same bytes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.rows import (
    FORMAT_VERSION,
    WRITE_OPTIONS,
    CacheError,
    ClipIdentity,
    Entry,
    StoredClip,
    read_checked,
    to_table,
)
from pipeline.cache.shards import Shards, hash_of, is_shard
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from tango_core.compressors.base import Compressor
    from tango_core.models.base import ModelSpec

__all__ = ["CacheError", "ClipIdentity", "Entry", "TokenCache", "open_cache", "read_clip"]


MANIFEST = "manifest.json"


class TokenCache:
    """The token sets of one (model, sampling, compressor) setting.

    Args:
        root: Directory or URL that holds all caches.
        identity: JSON-able settings; equal identities share one directory.
        label: Readable beginning of the directory's name.
        clock: Dates the entries.
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
        self.storage = Storage.at(root).child(self.name)
        self.shards = Shards(self.storage)
        self._clock = clock

    @classmethod
    def existing(cls, root: str | Storage, name: str) -> TokenCache:
        """Open the cache in a directory, by the manifest in it.

        Raises:
            FileNotFoundError: If it has no manifest.
            CacheError: If the manifest cannot be read or is not the one behind the name.
        """
        storage = Storage.at(root).child(name)
        identity = _settings(storage)
        found = cls(root, identity, name.rpartition("-")[0])
        if found.name != name:
            raise CacheError(
                f"{storage.path(MANIFEST)} holds other settings than the directory's name "
                f"says (their hash is {found.name.rpartition('-')[2]})"
            )
        return found

    def prepare(self) -> None:
        """Write the manifest, or check the one that is there.

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
        if canonical_json(_settings(self.storage)) != self.manifest:
            raise CacheError(
                f"{self.storage.root} was written with other settings than its name says; "
                "use another --cache directory or delete it"
            )

    def keys(self) -> set[str]:
        """Keys of the clips that are here, from one directory listing and the shards' footers."""
        names = self.storage.names()
        index = Shards(self.storage)  # forgotten at once: plans hold many caches
        index.refresh(names)
        files = (name for name in names if name.endswith(".parquet") and not is_shard(name))
        return {name.removesuffix(".parquet") for name in files} | index.by_key().keys()

    def write(self, clip: ClipIdentity, entry: Entry) -> None:
        """Add one clip; an entry with the same key is replaced."""
        sink = pa.BufferOutputStream()
        table = to_table(clip, entry, self._clock.now(), hash_of(self.storage))
        pq.write_table(table, sink, **WRITE_OPTIONS)
        self.storage.write(f"{clip.key}.parquet", memoryview(sink.getvalue()))

    def discard(self, key: str) -> None:
        """Remove a damaged clip, so that the next job computes it again."""
        if self.storage.exists(f"{key}.parquet"):
            self.storage.delete(f"{key}.parquet")
        else:
            self.shards.discard(key)

    def read(self, key: str) -> Entry:
        """Read one clip and check it.

        Raises:
            FileNotFoundError: If the clip is not here.
            CacheError: If the file is damaged.
        """
        try:
            return read_clip(self.storage, key).entry
        except FileNotFoundError:  # it may be in a shard, and may have been put there just now
            return self.shards.read(key).entry


def read_clip(storage: Storage, key: str) -> StoredClip:
    """Read one clip that has a file of its own in `storage`, and check it.

    Raises:
        FileNotFoundError: If there is no such file.
        CacheError: If the file is damaged, of another format, or holds another clip.
    """
    data = storage.read(f"{key}.parquet")
    return read_checked(
        lambda: pq.read_table(pa.BufferReader(data)),
        key,
        hash_of(storage),
        storage.path(f"{key}.parquet"),
    )


def open_cache(
    root: str | Storage, model: ModelSpec, compressor: Compressor, clock: Clock = SYSTEM_CLOCK
) -> TokenCache:
    """The cache of one compressor on one model; equal settings always give the same directory."""
    options = compressor.identity()
    label = "-".join([short_name(model.name), f"{model.frames.num_frames}f", str(options["name"])])
    if compressor.retention < 1:
        label += f"-r{compressor.retention:g}"
    return TokenCache(root, {"model": model.identity(), "compressor": options}, label, clock)


def _settings(storage: Storage) -> dict[str, Any]:
    """What the manifest says, with a `CacheError` if it cannot be read."""
    try:
        settings = json.loads(storage.read(MANIFEST))
        if not isinstance(settings, dict):
            raise ValueError("it holds no settings")
    except ValueError as error:
        raise CacheError(
            f"{storage.path(MANIFEST)} is damaged ({error}); "
            "delete it, the next job with these settings writes it again"
        ) from error
    return settings
