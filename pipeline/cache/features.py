"""The feature cache: encoder output of every clip.

`<root>/<model>-<frames>f-features-<hash12>/` holds an entry with all tokens of a clip and entries
with its signals, one for each time that signals were computed (`names.py`). Its settings are the
model's and how tokens are stored, but not the stored signals, so that more can be added. If the
features of a clip contain everything that a method reads, its token set is not stored but computed
when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.cache import names, rows
from pipeline.cache.directory import KIND, MANIFEST, CacheDirectory
from pipeline.storage import Storage
from tango_core.extensions import short_name
from tango_core.types import VisualFeatures

if TYPE_CHECKING:
    from tango_core.models.base import ModelSpec

Stored = Literal["none", "tokens", "all"]
"""What a job stores of every clip that it encodes: nothing, its tokens, or also its signals."""


@dataclass(frozen=True)
class ReadFeatures:
    """Stored features of a clip.

    Attributes:
        features: The features, on the CPU when they are read.
        clip: Which clip they belong to.
        decode_video_ms: Time to decode it when its features were stored, in milliseconds.
        encode_ms: Time of the encoder at that time.
    """

    features: VisualFeatures
    clip: rows.ClipIdentity
    decode_video_ms: float
    encode_ms: float


class FeatureCache(CacheDirectory):
    """The features of one (model, sampling) setting."""

    schema = rows.FEATURES_SCHEMA
    write_options = rows.FEATURE_WRITE_OPTIONS
    checked = staticmethod(rows.checked_features)

    @property
    def dtype(self) -> rows.FeatureDtype:
        """How tokens are stored."""
        return "int8" if self.settings[KIND] == {"dtype": rows.INT8} else "auto"

    def parts(self) -> dict[str, set[str]]:
        """Part -> keys of the clips that have it; one listing."""
        found: dict[str, set[str]] = {}
        for key, part in map(names.split, self.entries()):
            found.setdefault(part, set()).add(key)
        return found

    def prepared(
        self,
        clip: rows.ClipIdentity,
        features: VisualFeatures,
        signals: Iterable[str],
        ms: tuple[float, float],
        rounded: rows.Levels | None = None,
        *,
        signals_alone: bool = False,
    ) -> Callable[[], None]:
        """A function that writes features; it needs no device, and any thread may call it.

        Args:
            clip: Which clip.
            features: Features of the clip; entries with the same key are replaced.
            signals: Names of the signals to store.
            ms: Times to decode and to encode, in milliseconds.
            rounded: The tokens in 8 bits, if they have been rounded already; see `rows.rounded`.
            signals_alone: Whether the tokens are stored already.
        """
        entries = []
        if not signals_alone:
            merged = [name for name in names.FRAME_MAP if getattr(features, name) is not None]
            levels = rounded or rows.levels_of(features, self.dtype)
            table = rows.features_table(clip, features, merged, ms, self.hash, levels)
            entries.append((clip.key, table))
        for part in names.signals_parts(signals):
            table = rows.features_table(clip, features, part.split("-"), ms, self.hash)
            entries.append((names.entry_name(clip.key, part), table))

        def put() -> None:
            for entry, table in entries:
                self.put(entry, table)

        return put

    def read(
        self,
        key: str,
        parts: Iterable[str],
        needs: frozenset[str],
        *,
        remove_damaged: bool = False,
    ) -> ReadFeatures:
        """The tokens of a clip and some signals, as the encoder computed them.

        Args:
            key: Key of the clip.
            parts: Parts with its tokens and signals, from `parts`.
            needs: Names of the signals.
            remove_damaged: Whether damaged entries are removed.

        Raises:
            FileNotFoundError: If an entry does not exist.
            CacheError: If one is damaged, or a signal is in none of the parts.
        """
        found: list[rows.StoredClip] = []
        content: dict[str, Any] = {}
        for part in (names.TOKENS, *(part for part in parts if part != names.TOKENS)):
            if found and not names.held_by([part]) & needs - content.keys():
                continue
            entry = names.entry_name(key, part)
            try:
                found.append(self.row(entry))
            except rows.CacheError:
                if remove_damaged:
                    self.discard(entry)
                raise
            content = {**found[-1].entry, **content}
        if absent := sorted({names.TOKENS, *needs} - content.keys()):
            where = self.storage.path(names.file_of(key))
            raise rows.CacheError(f"{where} has no {', '.join(absent)}")
        unread = {*names.SIGNALS, *names.LARGE_SIGNALS} - needs
        content = {name: one for name, one in content.items() if name not in unread}
        model: Any = self.settings.get("model")
        anchored = isinstance(model, dict) and model.get("companions") == "anchor"
        features = VisualFeatures(**content, anchored=anchored)
        ms = (found[0].table[name][0].as_py() for name in ("decode_ms", "encode_ms"))
        return ReadFeatures(features, found[0].clip, *ms)


@dataclass(frozen=True)
class FeatureStore:
    """The feature cache of a job.

    Attributes:
        cache: The cache.
        signals: Signals that are stored with the tokens.
        writes: Whether the job stores what it encodes; otherwise it only uses stored features.
        fill: Whether the features of every clip are stored, or only of those with a missing token
            set.
    """

    cache: FeatureCache
    signals: frozenset[str]
    writes: bool = True
    fill: bool = False


def open_features(
    root: str | Storage, model: Mapping[str, Any], dtype: rows.FeatureDtype = "auto"
) -> FeatureCache:
    """The feature cache of a model; equal settings always give the same directory.

    Args:
        root: Directory or URL of all caches.
        model: `ModelSpec.identity()`.
        dtype: How tokens are stored.
    """
    label = f"{short_name(model['name'])}-{model['frames']['num_frames']}f-features"
    return FeatureCache(root, {"model": dict(model), KIND: {"dtype": dtype}}, label)


def open_store(
    root: str | Storage,
    model: ModelSpec,
    stored: Stored,
    dtype: rows.FeatureDtype = "auto",
    *,
    needs: frozenset[str] = frozenset(),
    fill: bool = False,
) -> FeatureStore | None:
    """The feature store of a job.

    A job that stores no features uses those that earlier jobs stored unrounded; `None` if there are
    none.

    Args:
        root: Directory or URL of all caches.
        model: The model.
        stored: What the job stores.
        dtype: How tokens are stored.
        needs: Signals that the job's methods read.
        fill: See `FeatureStore`.
    """
    if stored == "none":
        cache = open_features(root, model.identity())
        exists = cache.storage.exists(MANIFEST)
        return FeatureStore(cache, frozenset(), writes=False) if exists else None
    signals = model.provides & {*names.SIGNALS, *needs} if stored == "all" else frozenset[str]()
    return FeatureStore(open_features(root, model.identity(), dtype), signals, fill=fill)


def is_of_features(settings: Mapping[str, Any]) -> bool:
    """Whether a manifest is one of a feature cache."""
    return isinstance(settings.get(KIND), dict) and "compressor" not in settings


def features_for(root: str | Storage, settings: Mapping[str, Any]) -> FeatureCache:
    """The feature cache for a token cache with these settings."""
    dtype: rows.FeatureDtype = "int8" if settings.get(KIND) == rows.INT8 else "auto"
    return open_features(root, settings["model"], dtype)
