"""Process many rows in blocks that fit the cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tango_core.ops.transfer import upload

# 1 MB of float32 stays in the cache of a core; a GPU takes larger blocks, bounded by memory.
CPU_ELEMENTS = 2**18
DEVICE_ELEMENTS = 2**26


def row_blocks(num_rows: int, width: int, device: torch.device) -> list[slice]:
    """Consecutive ranges that together cover all rows.

    Args:
        num_rows: Rows to cover.
        width: Elements of a row.
        device: Where the rows are.
    """
    elements = CPU_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS
    step = max(1, elements // max(1, width))
    return [slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def take_frames(tokens: Tensor, frames: Sequence[int]) -> Tensor:
    """Select frames given in ascending order; consecutive frames are returned as a view."""
    if frames[-1] - frames[0] + 1 == len(frames):
        return tokens[frames[0] : frames[-1] + 1]
    return tokens[upload(frames, tokens.device)]
