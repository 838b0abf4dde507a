"""Tokens in 8 bits with one scale per token: half the bytes of bfloat16, other tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pipeline.cache.companions import joined, parted

if TYPE_CHECKING:
    from torch import Tensor

    from tango_core.types import VisualFeatures

FeatureDtype = Literal["auto", "int8"]
"""How a feature cache stores tokens: as the encoder gave them, or in 8 bits."""

Levels = tuple["Tensor", "Tensor"]
"""What `quantise` gives."""

_LARGEST = 127


def quantise(tokens: Tensor) -> Levels:
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


def rounded(features: VisualFeatures) -> tuple[VisualFeatures, Levels]:
    """Features as a store in 8 bits gives them back, and what it must store for that.

    Devices may divide differently in the last bit, and round to another level then. So tokens are
    rounded once, where they are; to multiply levels and scales is exact to the last bit everywhere.

    Returns:
        The features, and levels and scales of their tokens, with the companions joined to them.
    """
    levels = quantise(joined(features.tokens, features.companions))
    dtype = str(features.tokens.dtype).removeprefix("torch.")
    tokens, companions = parted(restore(*levels, dtype), places=2)
    return replace(features, tokens=tokens, companions=companions), levels
