"""Tokens in 8 bits with one scale per token: half the bytes of bfloat16, other tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

FeatureDtype = Literal["auto", "int8"]
"""How a feature cache stores tokens: as the encoder gave them, or in 8 bits."""

_LARGEST = 127


def quantise(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Round every token to 255 levels between its own largest magnitude and its negative.

    Args:
        tokens: (..., D), any float dtype, finite.

    Returns:
        (..., D) int8, and (...,) float32 scales: a value is its level times its token's scale.
    """
    import torch

    values = tokens.float()
    scales = values.abs().amax(dim=-1) / _LARGEST
    levels = values / scales.clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    return levels.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def restore(levels: Tensor, scales: Tensor, dtype: str) -> Tensor:
    """The tokens that `quantise` stands for.

    Args:
        levels: (..., D) int8.
        scales: (...,) float32.
        dtype: Of the tokens, e.g. `"bfloat16"`.
    """
    import torch

    restored: Tensor = (levels.float() * scales[..., None]).to(getattr(torch, dtype))
    return restored
