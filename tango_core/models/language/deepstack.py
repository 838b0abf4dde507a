"""DeepStack: rows that are added to the states of visual tokens after the first layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Additions:
    """What the visual tokens of a pass bring along for its first layers.

    Qwen3-VL's tower gives every token E more rows of the language model's width. Row i is added to
    the token's state after layer i, so that layers 1 to E see them. It follows the token when a
    pruner drops others; where tokens were merged, the one that stays has its own.

    Args:
        rows: (n,) int64, ascending rows of the pass that have additions.
        values: (n, E, D).
    """

    def __init__(self, rows: Tensor, values: Tensor) -> None:
        self._rows = rows
        self._values = values

    def after(self, layer: int, hidden: Tensor) -> Tensor:
        """States after a layer.

        Args:
            layer: 0-based index of the layer that has run.
            hidden: (1, N, D) its output; not written to.
        """
        if layer >= self._values.shape[1]:
            return hidden
        rows = self._rows.to(hidden.device)
        added = self._values[:, layer].to(hidden)
        return hidden.index_copy(1, rows, hidden[:, rows] + added)

    def keep(self, stays: Tensor, num_rows: int) -> None:
        """Follow a pass that gets shorter.

        Args:
            stays: (N',) int64 ascending rows that stay.
            num_rows: N, rows before.
        """
        places = torch.full((num_rows,), -1, dtype=torch.int64, device=stays.device)
        places[stays] = torch.arange(len(stays), device=stays.device)
        found = places[self._rows.to(stays.device)]
        left = (found >= 0).nonzero()[:, 0]
        self._rows = found[left]
        self._values = self._values[left.to(self._values.device)]


def rows_left(stays: Sequence[tuple[slice, Tensor]], hidden: Tensor) -> Tensor:
    """(N',) rows of a pass that are left.

    Args:
        stays: Rows of every prompt that was pruned, in order, and which of them stay.
        hidden: (1, N, D) before.
    """
    every = torch.arange(hidden.shape[1], device=hidden.device)
    pieces: list[Tensor] = []
    done = 0
    for rows, keep in stays:
        pieces += [every[done : rows.start], keep + rows.start]
        done = rows.stop
    return torch.cat([*pieces, every[done:]])
