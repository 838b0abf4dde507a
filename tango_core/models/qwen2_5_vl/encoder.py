"""Vision encoder of Qwen2.5-VL: the blocks of transformers, with windows of equal size batched.

Most blocks attend within windows of 8 x 8 patches, 256 of them in a clip of 16 pairs of frames. The
module of transformers calls its attention kernel once per window: 7,168 small calls for a clip.
Windows at the right and lower edge of a frame are smaller, so there are at most four sizes, and a
block here makes one call per size. The tower works in window order: frame by frame, the patches of
a window contiguous.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from tango_core.models.towers.encoder import Grid
from tango_core.models.towers.patch_tower import PatchEncoder, PatchPlan, in_order


class Encoder(PatchEncoder):
    """Tower and patch merger of Qwen2.5-VL."""

    def build(self) -> nn.Module:
        """The module of transformers, whose weights are loaded later."""
        return Qwen2_5_VisionTransformerPretrainedModel._from_config(  # type: ignore[no-any-return]
            self.config.vision_config, attn_implementation="sdpa"
        )

    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """(num_positions,) seconds, interpolated from the frames' times as in the Tango release.

        The first position has the time of the first frame and the last position that of the last
        frame; a position does not have the mean time of its pair of frames.
        """
        count = np.arange(len(timestamps))
        return np.interp(np.linspace(0, len(timestamps) - 1, num_positions), count, timestamps)

    def plan(self, num_positions: int, grid: Grid) -> PatchPlan:
        """Window order, rotary embeddings and windows, grouped by size, of a clip's patches."""
        stock, device = self.model, self.device
        side = stock.spatial_merge_size
        thw = torch.tensor([[num_positions, grid[0] * side, grid[1] * side]])
        order, ends = get_vision_window_index(thw, side, stock.window_size, stock.patch_size)
        lengths = ends.diff()
        sizes = sorted(set(lengths.tolist()), reverse=True)
        windows = torch.split(torch.arange(int(ends[-1])), lengths.tolist())
        by_size = [torch.stack([one for one in windows if len(one) == size]) for size in sizes]
        grouped = torch.cat([windows.flatten() for windows in by_size]).to(device)
        places = get_vision_position_ids(thw, side).to(device)
        cosine, sine = stock.rotary_pos_emb(self.like, places)
        order = order.to(device)
        return PatchPlan(
            num_positions,
            (in_order(cosine, order), in_order(sine, order)),
            order=order,
            windows=tuple((len(windows), windows.shape[1]) for windows in by_size),
            grouped=None if len(sizes) == 1 else grouped,
        )
