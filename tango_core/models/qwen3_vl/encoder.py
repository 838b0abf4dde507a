"""Vision encoder of Qwen3-VL and Qwen3.5: the blocks and patch mergers of transformers.

Every block attends within a temporal position, so positions are independent and stay in raster
order, and a clip may be split between any positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModel
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from tango_core.models.towers.encoder import Grid
from tango_core.models.towers.patch_tower import PatchEncoder, PatchPlan, mean_timestamps


class Encoder(PatchEncoder):
    """Tower and mergers; `timestamps` are the middles that the prompt states."""

    def build(self) -> nn.Module:
        """The module of transformers, whose weights are loaded later."""
        return AutoModel.from_config(  # type: ignore[no-any-return]
            self.config.vision_config, attn_implementation="sdpa"
        )

    def facts(self) -> dict[str, Any]:
        """How companions of merged tokens are computed."""
        return {"anchored": getattr(self.spec.options, "companions", None) == "anchor"}

    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """Middles of the pairs."""
        return mean_timestamps(timestamps, self.frames_per_row)

    def plan(self, num_positions: int, grid: Grid) -> PatchPlan:
        """The learned position embedding, resampled to the grid, and the rotary embedding."""
        stock, device = self.model, self.device
        side = stock.spatial_merge_size
        thw = torch.tensor([[1, grid[0] * side, grid[1] * side]])
        indices, weights = get_vision_interpolation_indices_and_weights(
            thw,
            num_grid_per_side=stock.num_grid_per_side,
            mode=stock.interpolation_mode,
            align_corners=stock.interpolation_align_corners,
            spatial_merge_size=side,
        )
        rows = stock.pos_embed(indices.to(device)) * weights.to(device)[:, :, None]
        places = get_vision_position_ids(thw, side).to(device)
        cosine, sine = stock.rotary_pos_emb(self.like, places)
        embedding, cosine, sine = (
            part.repeat(num_positions, 1)
            for part in (rows.sum(1).to(self.like.dtype), cosine, sine)
        )
        return PatchPlan(num_positions, (cosine, sine), embedding)
