"""The feature cache: encoder output of every clip.

`<root>/<model>-<frames>f-features-<hash12>/` holds an entry with all tokens of a clip and entries
with signals of it, one per time that signals were computed (`names.py`). Its settings are the
model's and how tokens are stored; which signals are there is no setting, so more can be added.
Where the features of a clip hold all that a method reads, its token set is not stored: it is
computed again when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.cache.directory import MANIFEST, CacheDirectory
from pipeline.cache.feature_rows import (
    FEATURE_WRITE_OPTIONS,
    INT8,
    FeatureDtype,
    FeatureRow,
    Levels,
    read_row,
    signals_table,
    tokens_table,
)
from pipeline.cache.names import TOKENS, entry_name, file_of, held_by, signals_part, split
from pipeline.cache.rows import CacheError, ClipIdentity
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.extensions import short_name
from tango_core.types import VisualFeatures

if TYPE_CHECKING:
    from tango_core.models.base import ModelSpec

Stored = Literal["none", "tokens", "all"]
"""What a job stores of every clip that it encodes: nothing, its tokens, or its signals, too."""

KIND = "features"
"""Key of a manifest. A feature cache says there how it stores tokens, and so does a token cache
whose tokens were computed from rounded features."""


class FeaturesDamagedError(CacheError):
    """The stored features of a clip are not what was written."""


@dataclass(frozen=True)
class ReadFeatures:
    """Stored features of a clip.

    Attributes:
        features: On the CPU.
        clip: Which clip it is.
        decode_video_ms: Time to decode it, when its features were stored, in milliseconds.
        encode_ms: Time of the encoder then.
    """

    features: VisualFeatures
    clip: ClipIdentity
    decode_video_ms: float
    encode_ms: float


class FeatureCache(CacheDirectory):
    """The features of one (model, sampling) setting."""

    @property
    def dtype(self) -> FeatureDtype:
        """How tokens are stored."""
        return "int8" if self.settings[KIND] == {"dtype": INT8} else "auto"

    def parts(self) -> dict[str, set[str]]:
        """Part -> keys of the clips of which it is here; one listing."""
        found: dict[str, set[str]] = {}
        for entry in self.entries():
            key, part = split(entry)
            found.setdefault(part, set()).add(key)
        return found

    def write(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Iterable[str],
        ms: tuple[float, float],
        rounded: Levels | None = None,
    ) -> None:
        """Add the tokens of a clip, and signals; an entry with the same key is replaced.

        Args:
            clip: Which clip.
            features: Of the clip.
            signals: Names of the signals to store.
            ms: Times to decode and to encode, in milliseconds.
            rounded: The tokens in 8 bits, if they have been rounded already; see `rounded`.
        """
        self.prepared(clip, features, signals, ms, rounded)()

    def prepared(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Iterable[str],
        ms: tuple[float, float],
        rounded: Levels | None = None,
        *,
        signals_alone: bool = False,
    ) -> Callable[[], None]:
        """A function that does what `write` does; it needs no device, and any thread may call it.

        For the arguments see `write`; with `signals_alone` the tokens are there already.
        """
        made: dict[str, Any] = {"created_at": self._clock.now(), "cache": self.hash}
        entries = []
        if not signals_alone:
            table = tokens_table(clip, features, ms, stored_as=self.dtype, rounded=rounded, **made)
            entries.append((clip.key, table))
        if found := {name: getattr(features, name) for name in signals}:
            table = signals_table(clip, features, found, ms, **made)
            entries.append((entry_name(clip.key, signals_part(found)), table))

        def put() -> None:
            for entry, table in entries:
                self.put(entry, table, FEATURE_WRITE_OPTIONS)

        return put

    def read(
        self,
        key: str,
        parts: Iterable[str],
        needs: frozenset[str],
        *,
        remove_damaged: bool = False,
    ) -> ReadFeatures:
        """The tokens of a clip and some signals, as the encoder gave them.

        Args:
            key: Of the clip.
            parts: Where its tokens and signals are, of those that `parts` finds.
            needs: Names of the signals.
            remove_damaged: Whether an entry that is damaged is made a miss.

        Raises:
            FileNotFoundError: If an entry is not here.
            FeaturesDamagedError: If one is damaged.
            CacheError: If a signal is not in any of the parts.
        """
        row = self._row(key, remove_damaged)
        if row.tokens is None:
            raise FeaturesDamagedError(f"{self.storage.path(file_of(key))} holds no tokens")
        signals = dict(row.signals)
        for part in parts:
            if part != TOKENS and held_by([part]) & needs - signals.keys():
                signals |= self._row(entry_name(key, part), remove_damaged).signals
        if absent := sorted(needs - signals.keys()):
            raise CacheError(f"{self.storage.path(file_of(key))} has no {', '.join(absent)}")
        model: Any = self.settings.get("model")
        features = VisualFeatures(
            tokens=row.tokens,
            grid=row.grid,
            timestamps=row.timestamps,
            sinks=row.sinks,
            source=row.source,
            companions=row.companions,
            anchored=isinstance(model, dict) and model.get("companions") == "anchor",
            **{name: signals[name] for name in sorted(needs)},
        )
        return ReadFeatures(features, row.clip, row.decode_video_ms, row.encode_ms)

    def read_entry(self, entry: str) -> FeatureRow:
        """Read a whole entry and check it.

        Raises:
            FileNotFoundError: If it is not here.
            CacheError: If it is damaged.
        """
        return read_row(*self.found(entry))

    def discard(self, key: str) -> None:
        """Remove the tokens of a clip, so that the next job encodes it again."""
        self.discard_entry(key)

    def _row(self, entry: str, remove_damaged: bool) -> FeatureRow:
        try:
            return self.read_entry(entry)
        except CacheError as error:
            if remove_damaged:
                self.discard_entry(entry)
            what = "; it was removed" if remove_damaged else ""
            raise FeaturesDamagedError(f"{error}{what}") from error


@dataclass(frozen=True)
class FeatureStore:
    """The feature cache of a job.

    Attributes:
        cache: Where features are.
        signals: Those that are stored beside the tokens.
        writes: Whether the job stores what it encodes; otherwise it uses what is there.
        fill: Whether the features of every clip are stored, or only of those that a missing token
            set is computed for.
    """

    cache: FeatureCache
    signals: frozenset[str]
    writes: bool = True
    fill: bool = False


def open_features(
    root: str | Storage,
    model: Mapping[str, Any],
    dtype: FeatureDtype = "auto",
    clock: Clock = SYSTEM_CLOCK,
) -> FeatureCache:
    """The feature cache of a model; equal settings always give the same directory.

    Args:
        root: Directory or URL of all caches.
        model: `ModelSpec.identity()`.
        dtype: How tokens are stored.
        clock: Dates the entries.
    """
    label = f"{short_name(model['name'])}-{model['frames']['num_frames']}f-features"
    return FeatureCache(root, {"model": dict(model), KIND: {"dtype": dtype}}, label, clock)


def open_store(
    root: str | Storage,
    model: ModelSpec,
    stored: Stored,
    dtype: FeatureDtype = "auto",
    *,
    fill: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> FeatureStore | None:
    """The feature store that a job asks for.

    A job that stores no features uses those that earlier jobs stored as the encoder gave them;
    `None` if there are none.

    Args:
        root: Directory or URL of all caches.
        model: Whose features.
        stored: What is stored.
        dtype: How tokens are stored.
        fill: See `FeatureStore`.
        clock: Dates the entries.
    """
    if stored == "none":
        cache = open_features(root, model.identity(), "auto", clock)
        there = cache.storage.exists(MANIFEST)
        return FeatureStore(cache, frozenset(), writes=False) if there else None
    signals = model.provides if stored == "all" else frozenset[str]()
    return FeatureStore(open_features(root, model.identity(), dtype, clock), signals, fill=fill)


def is_of_features(settings: Mapping[str, Any]) -> bool:
    """Whether a manifest is one of a feature cache."""
    return isinstance(settings.get(KIND), dict) and "compressor" not in settings


def features_for(root: str | Storage, settings: Mapping[str, Any]) -> FeatureCache | None:
    """The feature cache that belongs to a token cache; `None` if there can be none.

    Args:
        root: Directory or URL of all caches.
        settings: The manifest of the token cache.
    """
    model = settings.get("model")
    if not (isinstance(model, dict) and isinstance(model.get("frames"), dict)):
        return None
    if "name" not in model or "num_frames" not in model["frames"]:
        return None
    return open_features(root, model, "int8" if settings.get(KIND) == INT8 else "auto")
