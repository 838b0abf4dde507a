"""The vision tower of Qwen2.5-VL, block by block, and the signals that methods rank its tokens by.

Stock modules in our own loop: the input of the last block is then at hand, its queries and keys can
be computed beside the fused kernel, and windows of equal size attend together. The tower works in
window order, in which the patches of an attention window are contiguous; everything that leaves
this module is in raster order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    apply_rotary_pos_emb_vision,
)

from tango_core.models.qwen2_5_vl.windows import WindowPlan, in_window_order, run_block
from tango_core.models.trace import Observer
from tango_core.ops.saliency import mean_query_attention

# Attention probabilities in memory at once, in float32 numbers: a quarter of a GB. A frame of 448 x
# 448 pixels has 1024 patches, so all its 16 heads fit.
_PROBABILITIES_AT_ONCE = 2**26


@dataclass(frozen=True, eq=False)
class QwenTowerOutput:
    """What one pass through the tower leaves.

    Attributes:
        tokens: (T, L, D) merged tokens, raster order.
        block_input: (T * P, Dv) input of the last block, P patches per temporal position, window
            order.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each, window order.
        raster: (T * L,) int64: entry i is the place of raster token i in window order.
        block: The last block.
        merge: Patches of a token.
    """

    tokens: Tensor
    block_input: Tensor
    rotary: tuple[Tensor, Tensor]
    raster: Tensor
    block: nn.Module
    merge: int

    def in_raster_order(self, maps: Tensor) -> Tensor:
        """Undo the window order of (T, L) or (T, L, C) maps."""
        return maps.flatten(0, 1)[self.raster].view(maps.shape)


def run_qwen_tower(
    tower: Qwen2_5_VisionTransformerPretrainedModel,
    patches: Tensor,
    plan: WindowPlan,
    observe: Observer = lambda layer, hidden: None,
) -> QwenTowerOutput:
    """Run all blocks and the merger.

    Args:
        tower: Stock vision tower.
        patches: (T * P, values) from `to_patches`.
        plan: Of clips of this shape.
        observe: Is shown every layer's output, (T * P, Dv) in window order.
    """
    stock: Any = tower
    hidden = in_window_order(stock.patch_embed(patches), plan.order)
    observe(0, hidden)
    for index, block in enumerate(stock.blocks):
        block_input = hidden
        whole_frames = index in stock.fullatt_block_indexes
        hidden = run_block(block, hidden, plan, whole_frames=whole_frames)
        observe(index + 1, hidden)
    tokens = stock.merger(hidden)[plan.raster]
    return QwenTowerOutput(
        tokens=tokens.view(plan.num_positions, -1, tokens.shape[-1]),
        block_input=block_input,
        rotary=plan.rotary,
        raster=plan.raster,
        block=block,
        merge=stock.spatial_merge_size**2,
    )


def activation_bytes(config: Any, num_patches: int, itemsize: int) -> int:
    """Memory that one temporal position takes in the tower and the signals, rounded up.

    Residual stream, normalised input, queries, keys, values before and after their rotary
    embedding, which is computed in float32, their attention and three sides of the gated MLP.

    Args:
        config: Of the tower.
        num_patches: P.
        itemsize: Bytes of a number.
    """
    block: int = 10 * config.hidden_size + 3 * config.intermediate_size
    signals: int = 8 * config.hidden_size * 4
    return num_patches * (block * itemsize + signals)


def mean_query_saliency(output: QwenTowerOutput) -> Tensor:
    """Attention of each frame's mean query to its tokens in the last block ("p-attn").

    Returns:
        (T, L) float32; every row sums to 1.
    """
    queries, keys = _queries_and_keys(output)
    scores = mean_query_attention(queries, keys, len(output.tokens), output.merge)
    return output.in_raster_order(scores)


def received_patch_attention(output: QwenTowerOutput) -> Tensor:
    """Mean self-attention that each token's patches receive together in the last block ("attn").

    Softmax in float32, mean over heads, mean over the frame's patches as queries, sum over the
    patches of a token.

    Returns:
        (T, L) float32; every row sums to 1.
    """
    received, num_heads = _received_by_heads(output)
    tokens = received.view(len(received), -1, output.merge).sum(dim=2) / num_heads
    return output.in_raster_order(tokens)


def received_by_patches(output: QwenTowerOutput) -> Tensor:
    """The same of every patch.

    Returns:
        (T, P) float32 in window order; every row sums to 1.
    """
    received, num_heads = _received_by_heads(output)
    return received / num_heads


def patches_in_raster_order(values: Tensor, plan: WindowPlan, grid: tuple[int, int]) -> Tensor:
    """Undo the window order of patches.

    Args:
        values: (T * P, C) in window order, where the patches of a token are together.
        plan: Of clips of this shape.
        grid: (H, W) tokens.

    Returns:
        (T, P, C), patches row by row over the whole frame.
    """
    tokens = values.view(len(plan.order), -1, values.shape[-1])[plan.raster]
    side = math.isqrt(tokens.shape[1])
    split = tokens.view(plan.num_positions, *grid, side, side, -1)
    return split.transpose(2, 3).flatten(1, 4)


def _received_by_heads(output: QwenTowerOutput) -> tuple[Tensor, int]:
    """(T, P) attention that patches receive, summed over heads, and the number of heads.

    One frame at a time; of large frames a few heads at a time.
    """
    attention: Any = output.block.attn
    num_positions = len(output.tokens)
    queries, keys = (
        part.view(num_positions, -1, *part.shape[1:]).transpose(1, 2)
        for part in _queries_and_keys(output)
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


def mean_patch_keys(output: QwenTowerOutput) -> Tensor:
    """Keys of the last block, averaged over heads and over the patches of a token.

    Taken before the rotary embedding: a similarity of content, not of place.

    Returns:
        (T, L, head_dim) float32.
    """
    _, keys = _projected(output)
    num_positions, num_tokens, _ = output.tokens.shape
    averaged = keys.float().mean(dim=1).view(num_positions, num_tokens, output.merge, -1)
    return output.in_raster_order(averaged.mean(dim=2))


def _queries_and_keys(output: QwenTowerOutput) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys of the last block, (T * P, heads, head_dim) each, window order."""
    queries, keys = apply_rotary_pos_emb_vision(*_projected(output), *output.rotary)
    return queries, keys


def _projected(output: QwenTowerOutput) -> tuple[Tensor, Tensor]:
    """Queries and keys of the last block before the rotary embedding."""
    block: Any = output.block
    packed = block.attn.qkv(block.norm1(output.block_input))
    queries, keys, _ = packed.view(len(packed), 3, block.attn.num_heads, -1).unbind(dim=1)
    return queries, keys
