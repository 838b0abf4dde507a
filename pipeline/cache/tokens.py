"""The token cache: what one compressor kept of every clip, as Parquet files that any reader opens.

`<root>/<readable-name>-<hash12>/` holds `manifest.json` (the settings behind the hash) and one
entry per clip, named by the clip's key (`names.py`): its tokens, or a plan that makes them from the
clip's features (`plans.py`). `tango cache compact` puts many entries into one file (`shards.py`). A
resumed job only asks whether an entry exists, because it becomes visible only when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cache.contents import Held
from pipeline.cache.directory import MANIFEST, CacheDirectory
from pipeline.cache.features import KIND, FeatureCache, features_for
from pipeline.cache.names import PLAN, TOKENS, entry_name, file_of, split
from pipeline.cache.plans import (
    OutdatedPlanError,
    PlanEntry,
    StoredPlan,
    plan_to_table,
    read_plan,
)
from pipeline.cache.rows import (
    WRITE_OPTIONS,
    CacheError,
    ClipIdentity,
    Entry,
    StoredClip,
    read_checked,
    to_table,
)
from pipeline.cache.shards import hash_of
from pipeline.cache.stored import StoredRow, read_entry
from pipeline.cache.stored_features import FeaturesDamagedError, StoredFeatures
from pipeline.cache.token_layout import INT8
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from tango_core.compressors.base import Compressor
    from tango_core.models.base import ModelSpec
    from tango_core.types import CompressedVideo

__all__ = [
    "MANIFEST",
    "CacheError",
    "ClipIdentity",
    "Entry",
    "TokenCache",
    "open_cache",
    "read_clip",
]


class TokenCache(CacheDirectory):
    """The token sets of one (model, sampling, compressor) setting."""

    # Entries that are looked for first; a job that stores plans mostly meets those.
    _order = (TOKENS, PLAN)

    unsure_plans = 0
    """Clips that the last listing for `keys` found by plans of which it does not know whether they
    are for the tokens that the feature store holds now."""

    @cached_property
    def features(self) -> FeatureCache | None:
        """The feature cache that plans in here are made for; `None` if there can be none."""
        return features_for(self.root, self.settings)

    def with_features(self, features: FeatureCache) -> TokenCache:
        """This cache, where plans are more likely than tokens; features are opened once for all.

        Args:
            features: Shared by all token caches of a job.
        """
        self.__dict__["features"] = features
        self._order = (PLAN, TOKENS)
        return self

    def keys(self, with_tokens: Callable[[FeatureCache], Held] | None = None) -> set[str]:
        """Keys of the clips that are here; a plan whose features have gone is not.

        Nor is one for other tokens than those that are stored now, where shards tell (`contents`).

        Args:
            with_tokens: Feature cache -> the clips whose tokens it holds; `None` to look.
        """
        by_part: dict[str, set[str]] = {TOKENS: set(), PLAN: set()}
        listing = self.listing()
        for entry in listing.entries:
            key, part = split(entry)
            by_part.setdefault(part, set()).add(key)
        tokens, plans = by_part[TOKENS], by_part[PLAN] - by_part[TOKENS]
        self.unsure_plans = 0
        if not plans or self.features is None:
            return tokens
        held = (with_tokens or tokens_in)(self.features)
        fitting, outdated = listing.marks.compared(held.marks)
        plans &= held.keys
        plans -= outdated
        self.unsure_plans = len(plans - fitting)
        return tokens | plans

    def holds_tokens(self, key: str) -> bool:
        """Whether the tokens of a clip have a file of their own here."""
        return self.storage.exists(file_of(key))

    def write(self, clip: ClipIdentity, entry: Entry) -> None:
        """Add the tokens of one clip; an entry with the same key is replaced."""
        self._put(clip.key, to_table(clip, entry, self._clock.now(), self.hash))

    def write_plan(self, clip: ClipIdentity, entry: PlanEntry) -> None:
        """Add the plan of one clip; one with the same key is replaced."""
        table = plan_to_table(clip, entry, self._clock.now(), self.hash)
        self._put(entry_name(clip.key, PLAN), table)

    def discard(self, key: str) -> None:
        """Remove a damaged clip, so that the next job computes it again."""
        for entry in (key, entry_name(key, PLAN)):
            self.discard_entry(entry)

    def drop_outdated(self, key: str) -> None:
        """Remove the plan of a clip if it is for other tokens than the feature store holds now.

        Both are read for it. What cannot be read stays: for whoever reads it, or for the listing,
        where a plan without features is none.
        """
        with suppress(FileNotFoundError, CacheError):
            stored = self.read_as_stored(key, [PLAN])
            assert isinstance(stored, StoredPlan)
            if self.features and self.features.layout(key).digest != stored.entry.tokens_digest:
                self.discard_entry(entry_name(key, PLAN))

    def read(self, key: str) -> Entry:
        """Read one clip and check it; a plan is applied.

        Raises:
            FileNotFoundError: If the clip is not here.
            CacheError: If the file, or the features of a plan, are damaged.
        """
        return self.read_stored(key).entry

    def read_stored(self, key: str) -> StoredClip:
        """The same with all that is stored beside it."""
        for part in self._order:
            with suppress(FileNotFoundError):
                if part == TOKENS:
                    return read_clip(self.storage, key)
                return self.applied(read_plan_file(self.storage, key))
        for part in self._order:  # it may be in a shard, and may have been put there just now
            entry = entry_name(key, part)
            with suppress(FileNotFoundError):
                place = self.shards.place_of(entry).fetched()
                where = f"{self.storage.path(place.file)}, clip {entry},"
                if part == TOKENS:
                    return read_checked(place.table, key, self.hash, where)
                return self.applied(read_plan(place.table, key, self.hash, where))
        raise FileNotFoundError(f"{self.storage.path(file_of(key))} is not there")

    def read_as_stored(
        self, key: str, parts: Sequence[str] = (PLAN, TOKENS)
    ) -> StoredPlan | StoredClip:
        """What is stored of a clip, checked; a plan is not applied, so it needs no features.

        Args:
            key: Of the clip.
            parts: `PLAN`, `TOKENS` or both, in the order in which they are looked for.

        Raises:
            FileNotFoundError: If none of the parts is here.
            CacheError: If the one that is found is damaged.
        """
        entries = [entry_name(key, part) for part in parts]
        for entry in entries:
            with suppress(FileNotFoundError):
                return _of_tokens(read_entry(False, entry, self.storage))
        for entry in entries:  # it may be in a shard, and may have been put there just now
            with suppress(FileNotFoundError):
                place = self.shards.place_of(entry)
                return _of_tokens(read_entry(False, entry, self.storage, place))
        raise FileNotFoundError(f"{self.storage.path(file_of(key))} is not there")

    def read_tokens(self, key: str) -> StoredClip:
        """Read the tokens of a clip that have a file of their own; see `read`."""
        return read_clip(self.storage, key)

    def applied(self, stored: StoredPlan) -> StoredClip:
        """Put the tokens of a plan together.

        Raises:
            OutdatedPlanError: If the features have gone or are not those of the plan.
            CacheError: If they are damaged; then they are removed, because a job would compute
                other plans from them.
        """
        plan, clip = stored.entry, stored.clip
        features = self.features
        about = f"{self.storage.path(file_of(entry_name(clip.key, PLAN)))} is a plan"
        if features is None or features.name != plan.features:
            raise CacheError(f"{about} for {plan.features}, which is not the one of its settings")

        def video_of(found: StoredFeatures) -> CompressedVideo:
            if found.digest != plan.tokens_digest:
                raise OutdatedPlanError(f"{about} for other tokens than {features.name} holds now")
            return found.applied(plan.plan)

        try:
            video = features.using(clip.key, video_of)
        except FileNotFoundError as error:
            raise OutdatedPlanError(f"{about} whose features have gone: {error}") from error
        except FeaturesDamagedError:
            features.discard(clip.key)
            raise
        times = (plan.decode_video_ms, plan.encode_ms, plan.compress_ms)
        entry = Entry(replace(video, source=plan.source), *times)
        return StoredClip(clip, entry, stored.table, sealed=True)

    def _put(self, entry: str, table: pa.Table) -> None:
        """Write an entry with a file of its own."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **WRITE_OPTIONS)
        self.storage.write(file_of(entry), memoryview(sink.getvalue()))


def _of_tokens(row: StoredRow) -> StoredPlan | StoredClip:
    """An entry of a token cache."""
    assert isinstance(row, StoredPlan | StoredClip)
    return row


def apart(caches: Mapping[str, TokenCache]) -> dict[str, TokenCache]:
    """The same caches for another thread; those that share features share them there, too."""
    others = {name: cache.apart() for name, cache in caches.items()}
    shared: dict[int, FeatureCache] = {}
    for other in others.values():
        features: FeatureCache | None = vars(other).get("features")
        if features is not None:
            vars(other)["features"] = shared.setdefault(id(features), features.apart())
    return others


def tokens_in(features: FeatureCache) -> Held:
    """The clips whose tokens a feature cache holds."""
    return features.listed()[1]


def read_clip(storage: Storage, key: str) -> StoredClip:
    """Read one clip that has a file of its own in `storage`, and check it.

    Raises:
        FileNotFoundError: If there is no such file.
        CacheError: If the file is damaged, of another format, or holds another clip.
    """
    data = storage.read(file_of(key))
    return read_checked(
        lambda: pq.read_table(pa.BufferReader(data)),
        key,
        hash_of(storage),
        storage.path(file_of(key)),
    )


def read_plan_file(storage: Storage, key: str) -> StoredPlan:
    """The same for a plan."""
    name = file_of(entry_name(key, PLAN))
    data = storage.read(name)
    return read_plan(
        # Not `read_table`, which takes longer than all the rest.
        lambda: pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False),
        key,
        hash_of(storage),
        storage.path(name),
    )


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
    cache = TokenCache(root, identity, label, clock)
    return cache if features is None else cache.with_features(features)
