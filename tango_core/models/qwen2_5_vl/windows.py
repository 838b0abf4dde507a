"""The attention of Qwen2.5-VL's tower, with windows of equal size computed together.

Most blocks attend within windows of 8 x 8 patches, 256 of them in a clip of 16 pairs of frames.
The stock module calls its kernel once per window: 7,168 small calls for a clip. Windows at the
right and lower edge of a frame are smaller, so there are at most four sizes and as many calls in a
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from tango_core.models.patch_blocks import STOCK, BlockHalves
from tango_core.models.patch_signals import attend_within


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """Where the patches of a clip are in the tower; the same for all clips of one shape.

    Window order is that of the stock tower: frame by frame, the patches of a window contiguous.

    Attributes:
        num_positions: T.
        order: (T * L,) int64: entry i is the raster token at place i in window order.
        raster: (T * L,) int64: entry i is the place of raster token i in window order.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each, window order.
        sizes: (windows, patches of each) for every size of window, the largest first.
        grouped: (T * P,) int64 places in window order such that windows of equal size are
            contiguous; `None` if all are equal.
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
    """Find the windows of a clip.

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
    """Bring (T * P, C) values of patches, token by token in raster order, into window order."""
    return values.view(len(order), -1)[order].view(len(values), -1)


def run_block(
    block: nn.Module,
    hidden: Tensor,
    plan: WindowPlan,
    *,
    whole_frames: bool,
    halves: BlockHalves = STOCK,
) -> Tensor:
    """One block of the tower, as the stock block computes it.

    Args:
        block: Stock block.
        hidden: (T * P, Dv) in window order.
        plan: Of the clip.
        whole_frames: Attend within frames instead of windows.
        halves: What surrounds the attention.
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
