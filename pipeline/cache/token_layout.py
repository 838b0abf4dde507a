"""How the tokens of a clip lie in an entry of a feature cache, with a checksum for each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from pipeline.cache.sealed_rows import CacheError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

INT8 = "int8"


@dataclass(frozen=True)
class TokenLayout:
    """How the tokens of a clip are stored.

    Attributes:
        dtype: Of the tokens as the encoder gave them.
        stored_as: The same, or `"int8"`.
        shape: (T, L, D), or (T, L, 1 + E, D) where companions follow every token.
        scales: (T * L,) or (T * L, 1 + E) float32 for `"int8"`; else `None`.
        crcs: (T * L,) uint32, of the stored bytes of every token.
        digest: Of all of them.
    """

    dtype: str
    stored_as: str
    shape: tuple[int, ...]
    scales: Tensor | None
    crcs: npt.NDArray[np.uint32]
    digest: str

    @property
    def num_tokens(self) -> int:
        """T * L."""
        return self.shape[0] * self.shape[1]

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one token."""
        import torch

        kind: torch.dtype = getattr(torch, self.stored_as)
        return self.width * kind.itemsize

    @property
    def width(self) -> int:
        """Numbers of one token, those of its companions included."""
        return math.prod(self.shape[2:])

    def raise_if_damaged(
        self, data: Iterable[npt.NDArray[np.uint8]], tokens: npt.NDArray[np.int64]
    ) -> None:
        """Compare stored bytes with their checksums.

        Args:
            data: N times (row_bytes,); rows in place, as a copy takes as long as the checksums.
            tokens: (N,) which tokens they are.

        Raises:
            CacheError: If one differs; the message is a clause about "it".
        """
        found = crcs_of(data, len(tokens))
        wrong = np.flatnonzero(found != self.crcs[tokens])
        if len(wrong):
            raise CacheError(f"checksum of token {tokens[wrong[0]]} differs")


def crcs_of(rows: Iterable[npt.NDArray[np.uint8]], num_rows: int) -> npt.NDArray[np.uint32]:
    """(N,) CRC-32 of each of N rows of bytes."""
    return np.fromiter((crc32(row.data) for row in rows), np.uint32, num_rows)


def bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """(N, row_bytes) of an (N, D) tensor; numpy has no bfloat16."""
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
