"""A block of Qwen's towers without its attention: two functions of rows, for any number of them.

Which rows see each other is the family's own; everything else is the same in both, and is what
`torch.compile` can join (`compiling.py`). The rows of a clip depend on its shape, so the compiled
functions take any number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tango_core.models.compiling import can_compile, compiled
from tango_core.models.patch_signals import rotated


def before_attention(
    block: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a block, the first two rotated.

    Args:
        block: Stock block.
        hidden: (S, Dv) its input.
        rotary: Cosine and sine, (S, head_dim) each.

    Returns:
        (S, heads, head_dim) each.
    """
    packed = block.attn.qkv(block.norm1(hidden))
    parts = packed.view(len(hidden), 3, block.attn.num_heads, -1)
    queries, keys, values = parts.unbind(dim=1)
    return rotated(queries, *rotary), rotated(keys, *rotary), values


def after_attention(block: Any, hidden: Tensor, attended: Tensor) -> Tensor:
    """The output of a block.

    Args:
        block: Stock block.
        hidden: (S, Dv) its input.
        attended: (S, heads * head_dim).
    """
    hidden = hidden + block.attn.proj(attended)
    return hidden + block.mlp(block.norm2(hidden))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class BlockHalves:
    """What surrounds the attention of every block of a tower.

    Attributes:
        before: `before_attention`, or the same compiled.
        after: `after_attention`, or the same compiled.
    """

    before: Callable[[Any, Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]
    after: Callable[[Any, Tensor, Tensor], Tensor]


STOCK = BlockHalves(before_attention, after_attention)


def block_halves(wanted: bool, device: torch.device) -> BlockHalves:
    """The halves for a tower.

    Args:
        wanted: `ModelSpec.compile`.
        device: Of the tower.
    """
    if not can_compile(wanted, device):
        return STOCK
    return BlockHalves(compiled(before_attention), compiled(after_attention))
