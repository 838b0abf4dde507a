"""The features of one clip in a cache, opened: reads tokens one by one or all, each once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.cache.feature_rows import INT8, FeatureRow
from pipeline.cache.names import TOKENS
from pipeline.cache.places import RowPlace
from pipeline.cache.quantised import restore
from pipeline.cache.rows import CacheError
from tango_core.types import VisualFeatures

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A request to a store takes as long as this many bytes of a running one.
_STORE_GAP = 2**20
# A system call takes about as long as to copy this many bytes.
_DISK_GAP = 2**12


class FeaturesDamagedError(CacheError):
    """The tokens of a clip are not what was written."""


class StoredFeatures:
    """The tokens of a clip where they lie in a file, and its signals.

    Args:
        row: The entry of the tokens, checked, without them.
        place: Where it is.
        signals: Entries of signals.
    """

    def __init__(
        self, row: FeatureRow, place: RowPlace, signals: Iterable[FeatureRow] = ()
    ) -> None:
        import torch

        if row.tokens is None:
            raise CacheError(f"{place.storage.path(place.file)} is damaged (it holds no tokens)")
        self.row, self.layout = row, row.tokens
        self.signals = {n: value for one in signals for n, value in one.signals.items()}
        self._place = place
        layout = self.layout
        shape = (layout.num_tokens, layout.shape[2])
        stored: torch.dtype = getattr(torch, layout.stored_as)
        # Memory that nobody touches costs nothing: rows that nobody asks for are never read.
        self._stored = torch.empty(shape, dtype=stored)
        self._tokens = (
            torch.empty(shape, dtype=getattr(torch, layout.dtype))
            if layout.stored_as == INT8
            else self._stored
        )
        self._loaded = np.zeros(layout.num_tokens, dtype=bool)

    @property
    def digest(self) -> str:
        """Of the tokens, as they were written."""
        return self.layout.digest

    def tokens(self, wanted: Tensor | None = None) -> Tensor:
        """(T, L, D) tokens; only those that were asked for at any time hold anything.

        Args:
            wanted: (N,) flat positions; `None` for all.

        Raises:
            FeaturesDamagedError: If tokens are damaged.
            FileNotFoundError: If the file has gone.
        """
        layout = self.layout
        if wanted is None:
            missing = np.flatnonzero(~self._loaded)
        else:
            asked = np.zeros(layout.num_tokens, dtype=bool)
            asked[wanted.numpy()] = True
            missing = np.flatnonzero(asked & ~self._loaded)
        if len(missing):
            self._load(missing)
        return self._tokens.reshape(layout.shape)

    def features(self, needs: frozenset[str], device: Any = "cpu") -> VisualFeatures:
        """The clip as the encoder gave it, with some signals.

        Args:
            needs: Names of signals.
            device: Where to put everything; one copy each.

        Raises:
            FeaturesDamagedError: If tokens are damaged.
            CacheError: If a signal is not there.
            FileNotFoundError: If a file has gone.
        """
        absent = sorted(needs - self.signals.keys())
        if absent:
            raise CacheError(f"{self._where()} has no {', '.join(absent)}")
        row = self.row
        return VisualFeatures(
            tokens=self.tokens().to(device),
            grid=row.grid,
            timestamps=row.timestamps.to(device),
            sinks=row.sinks,
            source=row.source,
            **{name: self.signals[name].to(device) for name in sorted(needs)},
        )

    def _load(self, missing: npt.NDArray[np.int64]) -> None:
        """Read some tokens and compare them with their checksums."""
        import torch

        layout, place = self.layout, self._place
        data = self._stored.view(torch.uint8).numpy().reshape(layout.num_tokens, layout.row_bytes)
        try:
            start = place.value_at(TOKENS, layout.num_tokens * layout.row_bytes)
        except ValueError as error:
            raise FeaturesDamagedError(f"{self._where()} is damaged ({error})") from error
        read = _from_disk if place.storage.is_local else _from_store
        try:
            read(place, start, data, missing)
            layout.raise_if_damaged(data[missing] if len(missing) < len(data) else data, missing)
        except CacheError as error:
            raise FeaturesDamagedError(f"{self._where()} is damaged ({error})") from error
        if layout.scales is not None:
            rows = torch.from_numpy(missing)
            self._tokens[rows] = restore(self._stored[rows], layout.scales[rows], layout.dtype)
        self._loaded[missing] = True

    def _where(self) -> str:
        """The file and the clip, for messages."""
        return f"{self._place.storage.path(self._place.file)}, clip {self.row.clip.key},"


def _runs(rows: npt.NDArray[np.int64], most_apart: int) -> Iterator[tuple[int, int]]:
    """First and one behind the last of runs of ascending rows that are read in one go."""
    cuts = np.flatnonzero(np.diff(rows) - 1 > most_apart)
    firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(rows) - 1)
    for first, last in zip(rows[firsts].tolist(), rows[lasts].tolist(), strict=True):
        yield first, last + 1


def _from_disk(
    place: RowPlace, start: int, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]
) -> None:
    """Fill rows of (N, row_bytes) from a local file, in place."""
    row_bytes = data.shape[1]
    flat = memoryview(data.reshape(-1))
    descriptor = os.open(place.storage.path(place.file), os.O_RDONLY)
    try:
        for first, stop in _runs(rows, _DISK_GAP // row_bytes):
            at, end = first * row_bytes, stop * row_bytes
            while at < end:
                got = os.preadv(descriptor, [flat[at:end]], start + at)
                if got == 0:
                    raise CacheError("it ends before its tokens do")
                at += got
    finally:
        os.close(descriptor)


def _from_store(
    place: RowPlace, start: int, data: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]
) -> None:
    """Fill rows of (N, row_bytes) from an object, in few requests."""
    row_bytes = data.shape[1]
    with place.storage.opened(place.file) as file:
        for first, stop in _runs(rows, _STORE_GAP // row_bytes):
            got = file.read_at((stop - first) * row_bytes, start + first * row_bytes)
            if len(got) != (stop - first) * row_bytes:
                raise CacheError("it ends before its tokens do")
            data[first:stop] = np.frombuffer(got, np.uint8).reshape(-1, row_bytes)
