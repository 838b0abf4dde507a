"""What every kind of cache has in common: a directory named by the settings in its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from pipeline.cache.contents import Marks
from pipeline.cache.fingerprint import canonical_json, digest
from pipeline.cache.names import entry_of, file_of
from pipeline.cache.rows import FORMAT_VERSION
from pipeline.cache.sealed_rows import (
    CacheError,
)
from pipeline.cache.shards import Shards, hash_of, is_shard
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Listing:
    """What is in a cache.

    Attributes:
        entries: Their names.
        marks: Of which tokens those are that only shards hold: a file of its own comes first.
    """

    entries: set[str]
    marks: Marks


class CacheDirectory:
    """`<root>/<label>-<hash12>/` with `manifest.json`, entries in files of their own, and shards.

    A file becomes visible only when it is complete: a killed writer leaves nothing visible, and
    two jobs may fill one cache at once (both would write the same bytes).

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
        self.root = Storage.at(root)
        self.storage = self.root.child(self.name)
        self.shards = Shards(self.storage)
        self._clock = clock

    @classmethod
    def existing(cls, root: str | Storage, name: str) -> Self:
        """Open the cache in a directory, by the manifest in it.

        Raises:
            FileNotFoundError: If it has no manifest.
            CacheError: If the manifest cannot be read or is not the one behind the name.
        """
        storage = Storage.at(root).child(name)
        found = cls(root, read_manifest(storage), name.rpartition("-")[0])
        if found.name != name:
            raise CacheError(
                f"{storage.path(MANIFEST)} holds other settings than the directory's name "
                f"says (their hash is {found.name.rpartition('-')[2]})"
            )
        return found

    def apart(self) -> Self:
        """The same cache for another thread: what it remembers of its files is its own."""
        other = copy(self)
        other.shards = self.shards.apart()
        return other

    @property
    def settings(self) -> dict[str, Any]:
        """The content of the manifest."""
        return dict(json.loads(self.manifest))

    @property
    def hash(self) -> str:
        """The end of the directory's name."""
        return hash_of(self.storage)

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
        if canonical_json(read_manifest(self.storage)) != self.manifest:
            raise CacheError(
                f"{self.storage.root} was written with other settings than its name says; "
                "use another --cache directory or delete it"
            )

    def discard_entry(self, entry: str) -> None:
        """Remove one entry; one that is not there is no error."""
        if self.storage.exists(file_of(entry)):
            self.storage.delete(file_of(entry))
        else:
            self.shards.discard(entry)

    def listing(self) -> Listing:
        """All entries, from one directory listing and the shards' footers."""
        names = self.storage.names()
        index = Shards(self.storage)  # forgotten at once: plans hold many caches
        index.refresh(names)
        files = {entry_of(n) for n in names if n.endswith(".parquet") and not is_shard(n)}
        return Listing(files | index.by_key().keys(), index.marks(without=files))


def read_manifest(storage: Storage) -> dict[str, Any]:
    """What the manifest in a directory says, with a `CacheError` if it cannot be read."""
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
