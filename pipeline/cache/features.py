"""The feature cache: what the encoder gave of every clip, so that it is asked once, ever.

`<root>/<model>-<frames>f-features-<hash12>/` holds an entry with all tokens of a clip and entries
with signals of it, one per time that signals were computed (`names.py`). Its settings are the
model's and how tokens are stored; which signals are there is no setting, so more can be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pipeline.cache.contents import Held
from pipeline.cache.directory import CacheDirectory
from pipeline.cache.feature_rows import (
    FEATURE_WRITE_OPTIONS,
    SMALL_COLUMNS,
    FeatureRow,
    read_row,
    signals_table,
    tokens_table,
)
from pipeline.cache.footers import checked_writer
from pipeline.cache.names import TOKENS, entry_name, file_of, signals_part, split
from pipeline.cache.places import RowPlace, place_in_file
from pipeline.cache.quantised import FeatureDtype, Levels
from pipeline.cache.sealed_rows import (
    CacheError,
    ClipIdentity,
)
from pipeline.cache.stored_features import FeaturesDamagedError, StoredFeatures
from pipeline.cache.token_layout import INT8, TokenLayout
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from tango_core.extensions import short_name

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.types import VisualFeatures

T = TypeVar("T")

KIND = "features"
"""Key of a manifest. A feature cache says there how it stores tokens, and so does a token cache
whose tokens were computed from rounded features."""


class FeatureCache(CacheDirectory):
    """The features of one (model, sampling) setting."""

    _last: StoredFeatures | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A worker opens clips itself."""
        return {name: value for name, value in vars(self).items() if name != "_last"}

    @property
    def dtype(self) -> FeatureDtype:
        """How tokens are stored."""
        return "int8" if self.settings[KIND] == {"dtype": INT8} else "auto"

    @property
    def _anchored(self) -> bool:
        """Whether merged tokens take the companions of the token in their place."""
        model: Any = self.settings.get("model")
        return isinstance(model, dict) and model.get("companions") == "anchor"

    def parts(self) -> dict[str, set[str]]:
        """Part -> keys of the clips of which it is here; one listing."""
        return self.listed()[0]

    def listed(self) -> tuple[dict[str, set[str]], Held]:
        """The same, and the clips whose tokens are here with their marks."""
        listing = self.listing()
        found: dict[str, set[str]] = {}
        for entry in listing.entries:
            key, part = split(entry)
            found.setdefault(part, set()).add(key)
        return found, Held(found.get(TOKENS, set()), listing.marks)

    def write(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Iterable[str],
        ms: tuple[float, float],
        rounded: Levels | None = None,
    ) -> str:
        """Add the tokens of a clip, and signals; an entry with the same key is replaced.

        Args:
            clip: Which clip.
            features: Of the clip.
            signals: Names of the signals to store.
            ms: Times to decode and to encode, in milliseconds.
            rounded: The tokens in 8 bits, if they have been rounded already; see `rounded`.

        Returns:
            The digest of the tokens.
        """
        digest, put = self.prepared(clip, features, signals, ms, rounded)
        put()
        return digest

    def prepared(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Iterable[str],
        ms: tuple[float, float],
        rounded: Levels | None = None,
    ) -> tuple[str, Callable[[], None]]:
        """What `write` would write: the digest of the tokens, and a function that writes it.

        That needs no device, and any thread may call it. For the arguments see `write`.
        """
        table, layout = tokens_table(
            clip,
            features,
            ms,
            stored_as=self.dtype,
            rounded=rounded,
            created_at=self._clock.now(),
            cache=self.hash,
        )
        entries = [(clip.key, table)]
        if found := {name: getattr(features, name) for name in signals}:
            entries.append(self._of_signals(clip, features, found, ms))
        self._last = None

        def put() -> None:
            for entry, table in entries:
                self._put(entry, table)

        return layout.digest, put

    def write_signals(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Mapping[str, Tensor],
        ms: tuple[float, float],
    ) -> None:
        """Add signals of a clip beside its tokens."""
        if signals:
            self._last = None
            self._put(*self._of_signals(clip, features, signals, ms))

    def _of_signals(
        self,
        clip: ClipIdentity,
        features: VisualFeatures,
        signals: Mapping[str, Tensor],
        ms: tuple[float, float],
    ) -> tuple[str, pa.Table]:
        """Name and row of an entry of some signals."""
        now = self._clock.now()
        table = signals_table(clip, features, signals, ms, created_at=now, cache=self.hash)
        return entry_name(clip.key, signals_part(signals)), table

    def opened(self, key: str, parts: Iterable[str] = (TOKENS,)) -> StoredFeatures:
        """Open a clip; its tokens are read when they are asked for. The last one stays open.

        Args:
            key: Of the clip.
            parts: Where its tokens and signals are, of those that `parts` finds.

        Raises:
            FileNotFoundError: If an entry is not here.
            FeaturesDamagedError: If one is damaged.
        """
        wanted = [part for part in parts if part != TOKENS]
        last = self._last
        if last is None or last.row.clip.key != key:
            row, place = self._row(key, key)
            last = self._last = StoredFeatures(row, place, before=last, anchored=self._anchored)
        for part in wanted:
            if not set(part.split("-")) <= last.signals.keys():
                last.signals |= self._signals(key, part)
        return last

    def using(
        self, key: str, use: Callable[[StoredFeatures], T], parts: Iterable[str] = (TOKENS,)
    ) -> T:
        """Open a clip and do something with it; open it once more if that does not work.

        What is open may be older than what is in place: another process may have encoded the clip
        again, or moved it into a shard. Only what does not work just after it was opened says
        something about the features.

        Args:
            key: Of the clip.
            use: Receives the clip; what it raises is raised if it is raised twice.
            parts: See `opened`.
        """
        try:
            return use(self.opened(key, parts))
        except (FileNotFoundError, CacheError):
            self._last = None
        return use(self.opened(key, parts))

    def _signals(self, key: str, part: str) -> Mapping[str, Tensor]:
        """The signals in one part; a damaged part is removed, and those in it are lacking then."""
        entry = entry_name(key, part)
        try:
            return self._row(key, entry)[0].signals
        except FeaturesDamagedError:
            self.discard_entry(entry)
            raise

    def read(self, entry: str) -> FeatureRow:
        """Read a whole entry and check it.

        Raises:
            FileNotFoundError: If it is not here.
            CacheError: If it is damaged.
        """
        place = self.place_of(entry).fetched()
        return read_row(place.table, split(entry)[0], self.hash, self._where(place, entry))

    def layout(self, key: str) -> TokenLayout:
        """How the tokens of a clip are stored; they are not read. Safe in several threads.

        Raises:
            FileNotFoundError: If the clip is not here.
            FeaturesDamagedError: If its entry is damaged.
        """
        row, _ = self._row(key, key)
        if row.tokens is None:
            raise FeaturesDamagedError(f"{self.storage.path(file_of(key))} holds no tokens")
        return row.tokens

    def discard(self, key: str) -> None:
        """Remove the tokens of a clip, so that the next job encodes it again."""
        self._last = None
        self.discard_entry(key)

    def place_of(self, entry: str) -> RowPlace:
        """Where an entry is.

        Raises:
            FileNotFoundError: If it is not here.
            FeaturesDamagedError: If its file is damaged.
        """
        try:
            try:
                return place_in_file(self.storage, file_of(entry))
            except FileNotFoundError:  # it may be in a shard, and may have been put there just now
                return self.shards.place_of(entry)
        except CacheError as error:
            raise FeaturesDamagedError(str(error)) from error

    def _row(self, key: str, entry: str) -> tuple[FeatureRow, RowPlace]:
        """An entry without its tokens, and where it is.

        It takes two requests, and another process may put another file in place in between.
        """
        try:
            return self._row_once(key, entry)
        except FeaturesDamagedError:
            return self._row_once(key, entry)

    def _row_once(self, key: str, entry: str) -> tuple[FeatureRow, RowPlace]:
        """The same in one try."""
        place = self.place_of(entry)
        where = self._where(place, entry)
        try:
            fetched = place.fetched(SMALL_COLUMNS)
            return read_row(lambda: fetched.table(SMALL_COLUMNS), key, self.hash, where), place
        except CacheError as error:
            raise FeaturesDamagedError(str(error)) from error

    def _where(self, place: RowPlace, entry: str) -> str:
        """A file and an entry in it, for messages."""
        path = self.storage.path(place.file)
        return path if place.file == file_of(entry) else f"{path}, clip {entry},"

    def _put(self, entry: str, table: pa.Table) -> None:
        """Write an entry with a file of its own."""
        sink = pa.BufferOutputStream()
        with checked_writer(sink, table.schema, **FEATURE_WRITE_OPTIONS) as writer:
            writer.write_table(table)
        self.storage.write(file_of(entry), memoryview(sink.getvalue()))


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


def is_of_features(settings: Mapping[str, Any]) -> bool:
    """Whether a manifest is one of a feature cache."""
    return isinstance(settings.get(KIND), dict) and "compressor" not in settings


def features_for(root: str | Storage, settings: Mapping[str, Any]) -> FeatureCache | None:
    """The feature cache that the plans of a token cache need; `None` if they can have none.

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
