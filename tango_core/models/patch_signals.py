"""The signals that methods rank tokens by, from the last block of a tower that merges patches.

Qwen2.5-VL and Qwen3-VL have the same kind of block: one projection to queries, keys and values, a
rotary embedding over row and column, and full attention within a temporal position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.models.fused_attention import attend
from tango_core.ops.saliency import mean_query_attention

# Attention probabilities in memory at once, in float32 numbers: a quarter of a GB. A frame of 448 x
# 448 pixels has 1024 patches, so all its 16 heads fit.
_PROBABILITIES_AT_ONCE = 2**26


@dataclass(frozen=True, eq=False)
class LastBlock:
    """What the last block of a tower saw.

    Attributes:
        block: With `norm1` and `attn`.
        states: (T * P, Dv) its input, the patches of a token follow each other.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each.
        num_positions: T.
        merge: Patches of a token.
    """

    block: nn.Module
    states: Tensor
    rotary: tuple[Tensor, Tensor]
    num_positions: int
    merge: int

    def projected(self) -> tuple[Tensor, Tensor]:
        """Queries and keys before the rotary embedding, (T * P, heads, head_dim) each."""
        block: Any = self.block
        packed = block.attn.qkv(block.norm1(self.states))
        queries, keys, _ = packed.view(len(packed), 3, block.attn.num_heads, -1).unbind(dim=1)
        return queries, keys

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Queries and keys after it."""
        queries, keys = self.projected()
        return rotated(queries, *self.rotary), rotated(keys, *self.rotary)


def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(S, heads, head_dim) after the rotary embedding, computed in float32 as the towers do.

    Args:
        states: Queries or keys.
        cosine: (S, head_dim).
        sine: (S, head_dim).
    """
    values = states.float()
    first, second = values.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    mixed: Tensor = values * cosine[:, None].float() + turned * sine[:, None].float()
    return mixed.to(states.dtype)


def attend_within(
    parts: tuple[Tensor, Tensor, Tensor], sizes: Sequence[tuple[int, int]], scale: float
) -> Tensor:
    """Attention within contiguous windows, one call for all windows of a size.

    Args:
        parts: Queries, keys, values, (S, heads, d) each.
        sizes: (windows, length) in the order of the sequence.
        scale: Of the logits.

    Returns:
        (S, heads * d).
    """
    attended: list[Tensor] = []
    start = 0
    for count, length in sizes:
        stop = start + count * length
        queries, keys, values = (
            part[start:stop].view(count, length, *part.shape[1:]).transpose(1, 2) for part in parts
        )
        together = attend(queries, keys, values, scale=scale)
        attended.append(together.transpose(1, 2).reshape(count * length, -1))
        start = stop
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def mean_query_saliency(last: LastBlock) -> Tensor:
    """Attention of each frame's mean query to its tokens in the last block ("p-attn").

    Returns:
        (T, L) float32; every row sums to 1.
    """
    queries, keys = last.rotated()
    return mean_query_attention(queries, keys, last.num_positions, last.merge)


def received_patch_attention(last: LastBlock) -> Tensor:
    """Mean self-attention that each token's patches receive together in the last block ("attn").

    Softmax in float32, mean over heads, mean over the frame's patches as queries, sum over the
    patches of a token.

    Returns:
        (T, L) float32; every row sums to 1.
    """
    received, num_heads = _received_by_heads(last)
    return received.view(len(received), -1, last.merge).sum(dim=2) / num_heads


def received_by_patches(last: LastBlock) -> Tensor:
    """The same of every patch, in the order of the block's input.

    Returns:
        (T, P) float32; every row sums to 1.
    """
    received, num_heads = _received_by_heads(last)
    return received / num_heads


def _received_by_heads(last: LastBlock) -> tuple[Tensor, int]:
    """(T, P) attention that patches receive, summed over heads, and the number of heads.

    One frame at a time; of large frames a few heads at a time.
    """
    attention: Any = last.block.attn
    queries, keys = (
        part.view(last.num_positions, -1, *part.shape[1:]).transpose(1, 2)
        for part in last.rotated()
    )
    num_heads, num_patches = queries.shape[1:3]
    at_once = max(1, _PROBABILITIES_AT_ONCE // num_patches**2)
    received = []
    for query, key in zip(queries, keys, strict=True):
        total = torch.zeros(num_patches, device=query.device)
        for heads, their_keys in zip(query.split(at_once), key.split(at_once), strict=True):
            logits = heads.float() @ their_keys.float().mT * attention.scaling
            total += logits.softmax(dim=-1).mean(dim=1).sum(dim=0)
        received.append(total)
    return torch.stack(received), num_heads


def mean_patch_keys(last: LastBlock) -> Tensor:
    """Keys of the last block, averaged over heads and over the patches of a token.

    Taken before the rotary embedding: a similarity of content, not of place.

    Returns:
        (T, L, head_dim) float32.
    """
    _, keys = last.projected()
    averaged = keys.float().mean(dim=1).view(last.num_positions, -1, last.merge, keys.shape[-1])
    return averaged.mean(dim=2)
