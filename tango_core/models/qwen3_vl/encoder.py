"""The vision half of Qwen3-VL: tokens, DeepStack rows and signals of the stock tower.

Stock modules are called in an explicit loop. Every block attends within a temporal position, so
positions are independent and stay in raster order, and a clip may be split between any positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from tango_core.models.towers.encoder import Grid
from tango_core.models.towers.patch_tower import (
    LastBlock,
    PatchEncoder,
    PatchTowerOutput,
    attend_within,
)
from tango_core.models.towers.patches import mean_timestamps
from tango_core.models.towers.trace import Observer


@dataclass(frozen=True, eq=False)
class PatchPlaces:
    """Position embeddings of the patches of a temporal position, equal for all positions of a clip.

    Attributes:
        embedding: (P, Dv) learned position embedding, resampled to the grid.
        rotary: Cosine and sine, (P, head_dim) each.
    """

    embedding: Tensor
    rotary: tuple[Tensor, Tensor]


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


class Encoder(PatchEncoder):
    """Tower and mergers of Qwen3-VL.

    `timestamps` are the middles of the pairs, which the prompt states. Every token has the
    DeepStack rows of its position as companions.
    """

    def build(self) -> nn.Module:
        """The stock tower."""
        return Qwen3VLVisionModel._from_config(  # type: ignore[no-any-return]
            self.config.vision_config, attn_implementation="sdpa"
        )

    def facts(self) -> dict[str, Any]:
        """How companions of merged tokens are computed."""
        return {"anchored": getattr(self.spec.options, "companions", None) == "anchor"}

    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """Middles of the pairs."""
        return mean_timestamps(timestamps, self.layout.frames)

    def plan(self, num_positions: int, grid: Grid) -> PatchPlaces:
        """Positions of the patches of a grid."""
        return plan_places(self.model, grid, self.like)

    def run(self, patches: Tensor, plan: PatchPlaces, *observe: Observer) -> PatchTowerOutput:
        """Run all blocks and mergers; observers receive (T * P, Dv), grouped by token."""
        stock = self.model
        num_patches = len(plan.embedding)
        num_positions = len(patches) // num_patches
        hidden = stock.patch_embed(patches)
        hidden = hidden + plan.embedding.repeat(num_positions, 1)
        for look in observe:
            look(0, hidden)
        cosine, sine = (part.repeat(num_positions, 1) for part in plan.rotary)
        sizes = ((num_positions, num_patches),)
        deep: list[Tensor] = []
        for index, block in enumerate(stock.blocks):
            block_input = hidden
            parts = self._halves.before(block, hidden, (cosine, sine))
            attended = attend_within(parts, sizes, block.attn.scaling)
            hidden = self._halves.after(block, hidden, attended)
            for look in observe:
                look(index + 1, hidden)
            if index in stock.deepstack_visual_indexes:
                merger = stock.deepstack_visual_indexes.index(index)
                deep.append(stock.deepstack_merger_list[merger](hidden))
        tokens = stock.merger(hidden)
        shape = (num_positions, -1, tokens.shape[-1])
        merged = stock.spatial_merge_size**2
        return PatchTowerOutput(
            tokens.view(shape),
            LastBlock(block, block_input, (cosine, sine), num_positions, merged),
            companions=torch.stack([rows.view(shape) for rows in deep], dim=2),
        )

    def position_bytes(self, num_patches: int) -> int:
        """See `PatchEncoder.position_bytes`.

        Residual stream, normalised input, queries, keys, values before and after their rotary
        embedding, which is computed in float32, their attention and two sides of the MLP; for the
        mergers their concatenated input, inner activations and outputs.
        """
        config = self.model.config
        block: int = 10 * config.hidden_size + 2 * config.intermediate_size
        merger: int = 3 * config.hidden_size
        signals: int = 8 * config.hidden_size * 4
        rows = 1 + len(config.deepstack_visual_indexes)
        left: int = rows * config.out_hidden_size // config.spatial_merge_size**2
        return num_patches * ((block + merger + left) * self._dtype.itemsize + signals)
