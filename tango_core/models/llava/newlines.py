"""Where LLaVA puts its newline token among the tokens of a clip, compressed or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tango_core.models.llava.options import Newlines


@dataclass(frozen=True, eq=False)
class ClipLayout:
    """A clip's part of the sequence, newlines included.

    Attributes:
        order: (V,) int64, which kept token stands here; -1 for a newline.
        positions: (V,) int64, where this would be in the clip's part of the full sequence,
            ascending.
        full_length: Tokens of the clip's part of the full sequence.
    """

    order: Tensor
    positions: Tensor
    full_length: int


def lay_out_clip(indices: Tensor, grid: tuple[int, int, int], newlines: Newlines) -> ClipLayout:
    """Put the newlines of a clip where they belong.

    `"one_token"` is LLaVA-OneVision: one newline after the clip. `"grid"` is LLaVA-Video: one after
    every row of the grid, of which a row keeps its own as long as it keeps a token. Both are names
    of `mm_newline_position` in the original checkpoints. Newlines do not count as kept tokens: at
    10 % of 13 x 13 tokens they are half as many again.

    Args:
        indices: (K,) int64 ascending flat positions of the kept tokens.
        grid: (T, H, W) before compression.
        newlines: Where they go.
    """
    num_frames, height, width = grid
    order = torch.arange(len(indices))
    indices = indices.cpu()
    if newlines == "one_token":
        num_total = num_frames * height * width
        return ClipLayout(
            order=torch.cat([order, order.new_tensor([-1])]),
            positions=torch.cat([indices, indices.new_tensor([num_total])]),
            full_length=num_total + 1,
        )
    rows = indices // width
    occupied = torch.unique_consecutive(rows)
    # In the full sequence a row is `width` tokens and its newline, and so are positions unique.
    positions = torch.cat([indices + rows, occupied * (width + 1) + width])
    sources = torch.cat([order, torch.full_like(occupied, -1)])
    positions, ascending = positions.sort()
    return ClipLayout(sources[ascending], positions, num_frames * height * (width + 1))
