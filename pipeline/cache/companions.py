"""Tokens and the rows that go with them (DeepStack), stored side by side: one index cuts both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def joined(tokens: Tensor, companions: Tensor | None) -> Tensor:
    """What is stored of some tokens.

    Args:
        tokens: (..., D).
        companions: (..., E, D), or `None`.

    Returns:
        (..., D), or (..., 1 + E, D) with the token first.
    """
    import torch  # here, because caches are listed without it

    if companions is None:
        return tokens
    return torch.cat([tokens[..., None, :], companions], dim=-2)


def parted(rows: Tensor, places: int) -> tuple[Tensor, Tensor | None]:
    """Tokens and companions of what is stored; the reverse of `joined`.

    Args:
        rows: With `places` axes before the (1 + E, D) or the D of every token.
        places: 1 for kept tokens (K, ...), 2 for all of a clip (T, L, ...).
    """
    if rows.ndim == places + 1:
        return rows, None
    return rows[..., 0, :].contiguous(), rows[..., 1:, :].contiguous()
