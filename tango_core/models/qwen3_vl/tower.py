"""The vision tower of Qwen3-VL, block by block: tokens, DeepStack rows, and the last block.

Stock modules in our own loop. Every block attends within a temporal position, so positions do not
see each other and everything stays in raster order; a clip may be cut anywhere between positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from tango_core.models.patch_blocks import STOCK, BlockHalves
from tango_core.models.patch_signals import LastBlock, attend_within
from tango_core.models.trace import Observer


@dataclass(frozen=True, eq=False)
class PatchPlaces:
    """Where the patches of a temporal position are; the same for all positions of a clip.

    Attributes:
        embedding: (P, Dv) learned position embedding, resampled to the grid.
        rotary: Cosine and sine, (P, head_dim) each.
    """

    embedding: Tensor
    rotary: tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Qwen3TowerOutput:
    """What one pass through the tower leaves.

    Attributes:
        tokens: (T, L, D) merged tokens.
        companions: (T, L, E, D) DeepStack rows.
        last_block: The last block with its input.
    """

    tokens: Tensor
    companions: Tensor
    last_block: LastBlock


def plan_places(tower: Qwen3VLVisionModel, grid: tuple[int, int], like: Tensor) -> PatchPlaces:
    """Positions of the patches of a grid.

    Args:
        tower: Stock vision tower.
        grid: (H, W) tokens.
        like: A tensor of the device and dtype that the tower computes in.
    """
    stock: Any = tower
    side = stock.spatial_merge_size
    thw = torch.tensor([[1, grid[0] * side, grid[1] * side]])
    indices, weights = get_vision_interpolation_indices_and_weights(
        thw,
        num_grid_per_side=stock.num_grid_per_side,
        mode=stock.interpolation_mode,
        align_corners=stock.interpolation_align_corners,
        spatial_merge_size=side,
    )
    rows = stock.pos_embed(indices.to(like.device))
    embedding = (rows * weights.to(like.device)[:, :, None]).sum(1).to(like.dtype)
    cosine, sine = stock.rotary_pos_emb(like, get_vision_position_ids(thw, side).to(like.device))
    return PatchPlaces(embedding, (cosine, sine))


def run_qwen3_tower(
    tower: Qwen3VLVisionModel,
    patches: Tensor,
    places: PatchPlaces,
    observe: Observer = lambda layer, hidden: None,
    *,
    halves: BlockHalves = STOCK,
) -> Qwen3TowerOutput:
    """Run all blocks and mergers.

    Args:
        tower: Stock vision tower.
        patches: (T * P, values) from `to_patches`.
        places: Of the clip's grid.
        observe: Is shown every layer's output, (T * P, Dv), the patches of a token together.
        halves: What surrounds the attention of a block.
    """
    stock: Any = tower
    num_patches = len(places.embedding)
    num_positions = len(patches) // num_patches
    hidden = stock.patch_embed(patches)
    hidden = hidden + places.embedding.repeat(num_positions, 1)
    observe(0, hidden)
    cosine, sine = (part.repeat(num_positions, 1) for part in places.rotary)
    sizes = ((num_positions, num_patches),)
    deep: list[Tensor] = []
    for index, block in enumerate(stock.blocks):
        block_input = hidden
        parts = halves.before(block, hidden, (cosine, sine))
        attended = attend_within(parts, sizes, block.attn.scaling)
        hidden = halves.after(block, hidden, attended)
        observe(index + 1, hidden)
        if index in stock.deepstack_visual_indexes:
            merger = stock.deepstack_visual_indexes.index(index)
            deep.append(stock.deepstack_merger_list[merger](hidden))
    tokens = stock.merger(hidden)
    shape = (num_positions, -1, tokens.shape[-1])
    return Qwen3TowerOutput(
        tokens=tokens.view(shape),
        companions=torch.stack([rows.view(shape) for rows in deep], dim=2),
        last_block=LastBlock(
            block, block_input, (cosine, sine), num_positions, stock.spatial_merge_size**2
        ),
    )


def activation_bytes(config: Any, num_patches: int, itemsize: int) -> int:
    """Memory that one temporal position takes in the tower, mergers and signals, rounded up.

    Residual stream, normalised input, queries, keys, values before and after their rotary
    embedding, which is computed in float32, their attention and two sides of the MLP; of the
    mergers their joined input and inner width, and what they leave.

    Args:
        config: Of the tower.
        num_patches: P.
        itemsize: Bytes of a number.
    """
    block: int = 10 * config.hidden_size + 2 * config.intermediate_size
    merger: int = 3 * config.hidden_size
    signals: int = 8 * config.hidden_size * 4
    rows = 1 + len(config.deepstack_visual_indexes)
    left: int = rows * config.out_hidden_size // config.spatial_merge_size**2
    return num_patches * ((block + merger + left) * itemsize + signals)
