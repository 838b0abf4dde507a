"""The vision half of Qwen2.5-VL: the stock tower's blocks, with windows of equal size batched.

Most blocks attend within windows of 8 x 8 patches, 256 of them in a clip of 16 pairs of frames.
The stock module calls its kernel once per window: 7,168 small calls for a clip. Windows at the
right and lower edge of a frame are smaller, so there are at most four sizes and as many calls in a
block. The tower works in window order, in which the patches of a window are contiguous; everything
that leaves this module is in raster order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from tango_core.models.towers.encoder import Grid
from tango_core.models.towers.patch_tower import (
    STOCK,
    BlockHalves,
    LastBlock,
    PatchEncoder,
    PatchTowerOutput,
    attend_within,
)
from tango_core.models.towers.patches import pair_timestamps
from tango_core.models.towers.trace import Observer


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """Order and windows of a clip's patches in the tower, equal for all clips of one shape.

    Window order is that of the stock tower: frame by frame, the patches of a window contiguous.

    Attributes:
        num_positions: T.
        order: (T * L,) int64: entry i is the raster index of the i-th token in window order.
        raster: (T * L,) int64: entry i is the window-order index of raster token i.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each, window order.
        sizes: (windows, patches of each) for every size of window, the largest first.
        grouped: (T * P,) int64 permutation of window order that makes windows of equal size
            contiguous; `None` if all have one size.
        ungrouped: (T * P,) int64, the inverse.
    """

    num_positions: int
    order: Tensor
    raster: Tensor
    rotary: tuple[Tensor, Tensor]
    sizes: tuple[tuple[int, int], ...]
    grouped: Tensor | None
    ungrouped: Tensor | None


def plan_windows(
    tower: nn.Module, num_positions: int, grid: tuple[int, int], like: Tensor
) -> WindowPlan:
    """Compute the windows of a clip.

    Args:
        tower: Stock vision tower.
        num_positions: T.
        grid: (H, W) tokens.
        like: A tensor of the device and dtype that the tower computes in.
    """
    stock: Any = tower
    side, device = stock.spatial_merge_size, like.device
    thw = torch.tensor([[num_positions, grid[0] * side, grid[1] * side]])
    order, ends = get_vision_window_index(thw, side, stock.window_size, stock.patch_size)
    lengths = ends.diff()
    sizes = sorted(set(lengths.tolist()), reverse=True)
    windows = torch.split(torch.arange(int(ends[-1])), lengths.tolist())
    by_size = [torch.stack([one for one in windows if len(one) == size]) for size in sizes]
    grouped = torch.cat([windows.flatten() for windows in by_size])
    all_equal = len(sizes) == 1
    cosine, sine = stock.rotary_pos_emb(like, get_vision_position_ids(thw, side).to(device))
    order = order.to(device)
    return WindowPlan(
        num_positions=num_positions,
        order=order,
        raster=torch.argsort(order),
        rotary=(in_window_order(cosine, order), in_window_order(sine, order)),
        sizes=tuple((len(windows), windows.shape[1]) for windows in by_size),
        grouped=None if all_equal else grouped.to(device),
        ungrouped=None if all_equal else torch.argsort(grouped).to(device),
    )


def in_window_order(values: Tensor, order: Tensor) -> Tensor:
    """Reorder (T * P, C) patch values from raster order of tokens to window order."""
    return values.view(len(order), -1)[order].view(len(values), -1)


def run_block(
    block: nn.Module,
    hidden: Tensor,
    plan: WindowPlan,
    *,
    whole_frames: bool,
    halves: BlockHalves = STOCK,
) -> Tensor:
    """Run one block of the tower, equivalent to the stock block.

    Args:
        block: Stock block.
        hidden: (T * P, Dv) in window order.
        plan: Window plan of the clip.
        whole_frames: Attend within frames instead of windows.
        halves: Parts of the block before and after the attention.
    """
    stock: Any = block
    scaling = stock.attn.scaling
    queries, keys, values = halves.before(block, hidden, plan.rotary)
    if whole_frames:
        num_patches = len(hidden) // plan.num_positions
        attended = attend_within(
            (queries, keys, values), ((plan.num_positions, num_patches),), scaling
        )
    elif plan.grouped is None:
        attended = attend_within((queries, keys, values), plan.sizes, scaling)
    else:
        parts = (queries[plan.grouped], keys[plan.grouped], values[plan.grouped])
        attended = attend_within(parts, plan.sizes, scaling)[plan.ungrouped]
    return halves.after(block, hidden, attended)


class Encoder(PatchEncoder):
    """Tower and patch merger of Qwen2.5-VL; `timestamps` are those of `pair_timestamps`."""

    def build(self) -> nn.Module:
        """The stock tower."""
        return Qwen2_5_VisionTransformerPretrainedModel._from_config(  # type: ignore[no-any-return]
            self.config.vision_config, attn_implementation="sdpa"
        )

    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """Interpolated, as in the Tango release."""
        return pair_timestamps(timestamps, num_positions)

    def plan(self, num_positions: int, grid: Grid) -> WindowPlan:
        """Window plan of clips of this shape."""
        return plan_windows(self.model, num_positions, grid, self.like)

    def run(self, patches: Tensor, plan: WindowPlan, *observe: Observer) -> PatchTowerOutput:
        """Run all blocks and the merger; observers receive (T * P, Dv) in window order."""
        stock = self.model
        hidden = in_window_order(stock.patch_embed(patches), plan.order)
        for look in observe:
            look(0, hidden)
        for index, block in enumerate(stock.blocks):
            block_input = hidden
            whole_frames = index in stock.fullatt_block_indexes
            hidden = run_block(block, hidden, plan, whole_frames=whole_frames, halves=self._halves)
            for look in observe:
                look(index + 1, hidden)
        tokens = stock.merger(hidden)[plan.raster]
        last = LastBlock(
            block, block_input, plan.rotary, plan.num_positions, stock.spatial_merge_size**2
        )
        return PatchTowerOutput(
            tokens.view(plan.num_positions, -1, tokens.shape[-1]), last, raster=plan.raster
        )

    def position_bytes(self, num_patches: int) -> int:
        """See `PatchEncoder.position_bytes`.

        Residual stream, normalised input, queries, keys, values before and after their rotary
        embedding, which is computed in float32, their attention and three sides of the gated MLP.
        """
        config = self.model.config
        block: int = 10 * config.hidden_size + 3 * config.intermediate_size
        signals: int = 8 * config.hidden_size * 4
        return num_patches * (block * self._dtype.itemsize + signals)
