"""The features of one clip in a cache, opened: reads tokens one by one or all, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.cache.companions import parted
from pipeline.cache.feature_rows import FeatureRow
from pipeline.cache.names import TOKENS
from pipeline.cache.places import RowPlace
from pipeline.cache.quantised import restore
from pipeline.cache.sealed_rows import (
    CacheError,
)
from pipeline.cache.token_layout import INT8
from tango_core.types import CompressedVideo, VisualFeatures

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tango_core.combination import Combination

# A request to a store takes as long as this many bytes of a running one.
_STORE_GAP = 2**20


class FeaturesDamagedError(CacheError):
    """The tokens of a clip are not what was written."""


class StoredFeatures:
    """The tokens of a clip where they lie in a file, and its signals.

    Args:
        row: The entry of the tokens, checked, without them.
        place: Where it is.
        before: A clip that is not read any more; its memory is taken over where that fits, because
            the first touch of fresh memory takes longer than reading the file.
        anchored: See `VisualFeatures`.
    """

    def __init__(
        self,
        row: FeatureRow,
        place: RowPlace,
        before: StoredFeatures | None = None,
        *,
        anchored: bool = False,
    ) -> None:
        import torch

        if row.tokens is None:
            raise CacheError(f"{place.storage.path(place.file)} is damaged (it holds no tokens)")
        self.row, self.layout = row, row.tokens
        self.signals = dict(row.signals)
        self._place = place
        layout = self.layout
        shape = (layout.num_tokens, layout.width)
        stored: torch.dtype = getattr(torch, layout.stored_as)
        own: Tensor | None = None
        if before is not None and not before._is_lent:
            own = before._stored
        fits = own is not None and own.shape == shape and own.dtype == stored
        # Memory that nobody touches costs nothing: rows that nobody asks for are never read.
        self._stored: Tensor = own if own is not None and fits else torch.empty(shape, dtype=stored)
        self._tokens = (
            torch.empty(shape, dtype=getattr(torch, layout.dtype))
            if layout.stored_as == INT8
            else self._stored
        )
        self._loaded = np.zeros(layout.num_tokens, dtype=bool)
        self._is_lent: bool = False
        self.anchored = anchored

    @property
    def digest(self) -> str:
        """Of the tokens, as they were written."""
        return self.layout.digest

    def tokens(self, wanted: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(T, L, D) tokens and (T, L, E, D) companions, `None` where the model has none.

        Only those that were asked for at any time hold anything.

        The memory is used again for the next clip that is opened.

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
        whole = self._tokens.reshape(layout.shape)
        if len(layout.shape) == 3:
            return whole, None
        return whole[..., 0, :], whole[..., 1:, :]

    def features(self, needs: frozenset[str], device: Any = "cpu") -> VisualFeatures:
        """The clip as the encoder gave it, with some signals.

        Args:
            needs: Names of signals.
            device: Where to put everything; one copy each, for which nobody waits.

        Raises:
            FeaturesDamagedError: If tokens are damaged.
            CacheError: If a signal is not there.
            FileNotFoundError: If a file has gone.
        """
        absent = sorted(needs - self.signals.keys())
        if absent:
            raise CacheError(f"{self._where()} has no {', '.join(absent)}")
        row, self._is_lent = self.row, True
        tokens, companions = self.tokens()
        return VisualFeatures(
            # Methods read them many times; where companions lie between them, a copy pays.
            tokens=_on(tokens, device).contiguous(),
            grid=row.grid,
            timestamps=_on(row.timestamps, device),
            sinks=row.sinks,
            source=row.source,
            companions=None if companions is None else _on(companions, device),
            anchored=self.anchored,
            **self.signals_on(device, needs),
        )

    def signals_on(self, device: Any, needs: frozenset[str]) -> dict[str, Any]:
        """Some signals on a device, by name."""
        return {name: _on(self.signals[name], device) for name in sorted(needs)}

    def rows(self, wanted: Tensor) -> tuple[Tensor, Tensor | None]:
        """(N, D) tokens and (N, E, D) companions at (N,) ascending flat positions.

        Less to touch than `tokens` of few.

        Raises:
            FeaturesDamagedError: If tokens are damaged.
            FileNotFoundError: If the file has gone.
        """
        import torch

        positions = wanted.numpy()
        if self._loaded[positions].all():
            found = self._tokens.index_select(0, wanted)
        else:
            stored = torch.empty((len(positions), self.layout.width), dtype=self._stored.dtype)
            self._read(_bytes(stored, self.layout.row_bytes), np.arange(len(positions)), positions)
            found = self._restored(stored, wanted)
        return parted(found.view(len(found), *self.layout.shape[2:]), places=1)

    def applied(self, plan: Combination) -> CompressedVideo:
        """The token set of a plan; of a selection only those tokens are touched that are kept."""
        import torch

        if plan.sources is None:
            rows, companions = self.rows(plan.indices)
            return CompressedVideo(
                rows, plan.indices, plan.grid, plan.timestamps, companions=companions
            )
        wanted = plan.sources
        if self.anchored:
            wanted = torch.cat([wanted, plan.indices])
        return plan.apply(*self.tokens(wanted), anchored=self.anchored)

    def _load(self, missing: npt.NDArray[np.int64]) -> None:
        """Read some tokens to their places among all."""
        import torch

        self._read(_bytes(self._stored, self.layout.row_bytes), missing, missing)
        if self._tokens is not self._stored:
            rows = torch.from_numpy(missing)
            self._tokens[rows] = self._restored(self._stored[rows], rows)
        self._loaded[missing] = True

    def _restored(self, stored: Tensor, positions: Tensor) -> Tensor:
        """Tokens in the encoder's dtype."""
        scales = self.layout.scales
        if scales is None:
            return stored
        levels = stored.view(len(stored), *self.layout.shape[2:])
        return restore(levels, scales[positions], self.layout.dtype).view(stored.shape)

    def _read(
        self,
        data: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
    ) -> None:
        """Read tokens and compare them with their checksums.

        Args:
            data: (n, row_bytes) to fill.
            places: (N,) rows of it, ascending.
            tokens: (N,) flat positions of the tokens that belong there, ascending.
        """
        layout, place = self.layout, self._place
        try:
            start = place.value_at(TOKENS, layout.num_tokens * layout.row_bytes)
        except ValueError as error:
            raise FeaturesDamagedError(f"{self._where()} is damaged ({error})") from error
        read = _from_disk if place.storage.is_local else _from_store
        try:
            read(place, start, data, places, tokens)
            layout.raise_if_damaged((data[row] for row in places), tokens)
        except CacheError as error:
            raise FeaturesDamagedError(f"{self._where()} is damaged ({error})") from error

    def _where(self) -> str:
        """The file and the clip, for messages."""
        return f"{self._place.storage.path(self._place.file)}, clip {self.row.clip.key},"


def _on(tensor: Tensor, device: Any) -> Tensor:
    """The tensor on a device; nothing is copied for the CPU, and for no other device is waited."""
    import torch

    from tango_core.ops.transfer import upload

    where = torch.device(device)
    return upload(tensor if where.type == "cpu" else tensor.contiguous(), where)


def _bytes(tensor: Tensor, row_bytes: int) -> npt.NDArray[np.uint8]:
    """The memory of (N, D) as (N, row_bytes); numpy has no bfloat16."""
    import torch

    return tensor.view(torch.uint8).numpy().reshape(-1, row_bytes)


def _runs(
    places: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], most_apart: int
) -> Iterator[slice]:
    """Entries whose tokens are read in one go: not too far from each other in the file.

    With `most_apart` 0 they lie side by side in the file and in memory.
    """
    cuts = np.diff(tokens) - 1 > most_apart
    if most_apart == 0:
        cuts |= np.diff(places) != 1
    ends = np.append(np.flatnonzero(cuts) + 1, len(tokens))
    for first, stop in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield slice(first, stop)


def _from_disk(
    place: RowPlace,
    start: int,
    data: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
) -> None:
    """Fill rows from a local file, in place."""
    row_bytes = data.shape[1]
    flat = data.reshape(-1).data
    pieces = []
    for run in _runs(places, tokens, 0):
        at, source = int(places[run.start]) * row_bytes, int(tokens[run.start]) * row_bytes
        pieces.append((start + source, flat[at : at + (run.stop - run.start) * row_bytes]))
    try:
        place.storage.fill(place.file, pieces)
    except EOFError as error:
        raise CacheError("it ends before its tokens do") from error


def _from_store(
    place: RowPlace,
    start: int,
    data: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
) -> None:
    """Fill rows from an object, in few requests."""
    row_bytes = data.shape[1]
    with place.storage.opened(place.file) as file:
        for run in _runs(places, tokens, _STORE_GAP // row_bytes):
            first, stop = int(tokens[run.start]), int(tokens[run.stop - 1]) + 1
            got = file.read_at((stop - first) * row_bytes, start + first * row_bytes)
            if len(got) != (stop - first) * row_bytes:
                raise CacheError("it ends before its tokens do")
            rows = np.frombuffer(got, np.uint8).reshape(-1, row_bytes)
            data[places[run]] = rows[tokens[run] - first]
