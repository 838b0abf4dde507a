"""The token cache: the tokens that one compressor kept of every clip, in plain Parquet files.

`<root>/<readable-name>-<hash12>/` holds `manifest.json` (the settings behind the hash) and one
entry per clip, named by the clip's key (`names.py`). `tango cache compact` puts many entries into
one file (`shards.py`). A resumed job only asks whether an entry exists, because it becomes visible
only when it is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.cache.directory import MANIFEST, CacheDirectory
from pipeline.cache.feature_rows import INT8
from pipeline.cache.features import KIND, FeatureCache
from pipeline.cache.names import TOKENS, file_of, split
from pipeline.cache.rows import (
    WRITE_OPTIONS,
    CacheError,
    ClipIdentity,
    Entry,
    StoredClip,
    read_checked,
    to_table,
)
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from tango_core.compressors.base import Compressor
    from tango_core.models.base import ModelSpec

__all__ = [
    "MANIFEST",
    "CacheError",
    "ClipIdentity",
    "Entry",
    "TokenCache",
    "open_cache",
]


class TokenCache(CacheDirectory):
    """The token sets of one (model, sampling, compressor) setting."""

    def keys(self) -> set[str]:
        """Keys of the clips whose token sets are stored here."""
        return {key for key, part in map(split, self.entries()) if part == TOKENS}

    def holds_file(self, key: str) -> bool:
        """Whether the token set of a clip has a file of its own here."""
        return self.storage.exists(file_of(key))

    def write(self, clip: ClipIdentity, entry: Entry) -> None:
        """Write the tokens of one clip, replacing an entry with the same key."""
        self.put(clip.key, to_table(clip, entry, self._clock.now(), self.hash), WRITE_OPTIONS)

    def discard(self, key: str) -> None:
        """Remove a damaged clip, so that the next job computes it again."""
        self.discard_entry(key)

    def read(self, key: str) -> Entry:
        """Read one clip and check it.

        Raises:
            FileNotFoundError: If the clip is not here.
            CacheError: If the file is damaged.
        """
        return self.read_stored(key).entry

    def read_stored(self, key: str) -> StoredClip:
        """Like `read`, but with the clip's identity and the whole row."""
        return read_checked(*self.found(key))


def open_cache(
    root: str | Storage,
    model: ModelSpec,
    compressor: Compressor,
    clock: Clock = SYSTEM_CLOCK,
    features: FeatureCache | None = None,
) -> TokenCache:
    """The cache of one compressor on one model; equal settings always give the same directory.

    Args:
        root: Directory or URL of all caches.
        model: The Video LLM.
        compressor: What keeps the tokens.
        clock: Dates the entries.
        features: The feature cache of the job, if it has one; tokens that come from rounded
            features are other tokens.
    """
    options = compressor.identity()
    label = "-".join([short_name(model.name), f"{model.frames.num_frames}f", str(options["name"])])
    if compressor.retention < 1:
        label += f"-r{compressor.retention:g}"
    identity: dict[str, Any] = {"model": model.identity(), "compressor": options}
    if features is not None and features.dtype == INT8:
        identity[KIND] = INT8
    return TokenCache(root, identity, label, clock)
