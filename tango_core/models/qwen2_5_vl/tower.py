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

from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)

from tango_core.models import patch_signals
from tango_core.models.patch_blocks import STOCK, BlockHalves
from tango_core.models.patch_signals import LastBlock
from tango_core.models.patches import patches_by_row
from tango_core.models.qwen2_5_vl.windows import WindowPlan, in_window_order, run_block
from tango_core.models.trace import Observer


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

    @property
    def last_block(self) -> LastBlock:
        """The last block with its input, in window order."""
        num_positions = len(self.tokens)
        return LastBlock(self.block, self.block_input, self.rotary, num_positions, self.merge)

    def in_raster_order(self, maps: Tensor) -> Tensor:
        """Undo the window order of (T, L) or (T, L, C) maps."""
        return maps.flatten(0, 1)[self.raster].view(maps.shape)


def run_qwen_tower(
    tower: Qwen2_5_VisionTransformerPretrainedModel,
    patches: Tensor,
    plan: WindowPlan,
    observe: Observer = lambda layer, hidden: None,
    *,
    halves: BlockHalves = STOCK,
) -> QwenTowerOutput:
    """Run all blocks and the merger.

    Args:
        tower: Stock vision tower.
        patches: (T * P, values) from `to_patches`.
        plan: Of clips of this shape.
        observe: Is shown every layer's output, (T * P, Dv) in window order.
        halves: What surrounds the attention of a block.
    """
    stock: Any = tower
    hidden = in_window_order(stock.patch_embed(patches), plan.order)
    observe(0, hidden)
    for index, block in enumerate(stock.blocks):
        block_input = hidden
        whole_frames = index in stock.fullatt_block_indexes
        hidden = run_block(block, hidden, plan, whole_frames=whole_frames, halves=halves)
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
    """(T, L) float32 "p-attn" in raster order; see `patch_signals.mean_query_saliency`."""
    return output.in_raster_order(patch_signals.mean_query_saliency(output.last_block))


def received_patch_attention(output: QwenTowerOutput) -> Tensor:
    """(T, L) float32 "attn" in raster order; see `patch_signals.received_patch_attention`."""
    return output.in_raster_order(patch_signals.received_patch_attention(output.last_block))


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
    return patches_by_row(tokens.flatten(0, 1), grid, math.isqrt(tokens.shape[1]))


def mean_patch_keys(output: QwenTowerOutput) -> Tensor:
    """(T, L, head_dim) float32 in raster order; see `patch_signals.mean_patch_keys`."""
    return output.in_raster_order(patch_signals.mean_patch_keys(output.last_block))
