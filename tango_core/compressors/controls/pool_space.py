"""PoolSpace: average every frame to a smaller grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.compressors.base import Compressor
from tango_core.ops.blocks import row_blocks
from tango_core.types import CompressedVideo, VisualFeatures


@dataclass(frozen=True)
class PoolSpace(Compressor):
    """Average every frame of H x W tokens to h x w, as adaptive average pooling does.

    Bin i of an axis of n into m is floor(i * n / m) to ceil((i + 1) * n / m), so bins may overlap
    by one; its token stands at its centre cell, the earlier of two.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"official"` is h = round(H * sqrt(retention)) and w = round(retention * H * W / h);
            `"exact"` is the grid with the count nearest to retention * H * W among those of
            about the frame's shape, of several the one whose shape is nearest.
    """

    entry_name: ClassVar[str] = "pool_space"
    added_options: ClassVar[dict[str, Any]] = {"budget": "official"}

    budget: Literal["official", "exact"] = "official"

    def pooled_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """(h, w) that a frame of (H, W) tokens becomes."""
        height, width = grid
        if self.budget == "official":
            rows = min(height, max(1, round(height * math.sqrt(self.retention))))
            return rows, min(width, max(1, round(self.retention * height * width / rows)))
        wanted = self.retention * height * width

        def cost(size: tuple[int, int]) -> tuple[float, float]:
            shape = math.log(size[0] * width / (size[1] * height))
            return abs(size[0] * size[1] - wanted), abs(shape)

        return min(grids_of_shape(grid), key=cost)

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """Half a column of every frame, or its single token."""
        return num_frames * max(1.0, grid[0] / 2)

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Average in float32; copies of half precision are made some frames at a time."""
        tokens = features.tokens
        num_frames, tokens_per_frame, dim = tokens.shape
        size = self.pooled_grid(features.grid)
        if tokens.dtype == torch.float32:  # one call is fastest, and nothing is copied
            kept = _pooled(tokens, features.grid, size).contiguous()
        else:
            kept = tokens.new_empty(num_frames, size[0] * size[1], dim)
            for frames in row_blocks(num_frames, tokens_per_frame * dim, tokens.device):
                kept[frames] = _pooled(tokens[frames].float(), features.grid, size).to(kept.dtype)
        rows, columns = (_centers(*axis) for axis in zip(features.grid, size, strict=True))
        cells = (rows[:, None] * features.grid[1] + columns).flatten()
        places = torch.arange(num_frames)[:, None] * tokens_per_frame + cells
        return CompressedVideo(
            tokens=kept.flatten(0, 1),
            indices=places.flatten().to(tokens.device),
            grid=(num_frames, *features.grid),
            timestamps=features.timestamps,
        )


def grids_of_shape(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Grids up to (H, W) whose sides' ratio is at most twice or half the frame's, or as near.

    The nearest count alone would make strips: 3 x 11 for a fifth of 13 x 13.
    """
    height, width = grid
    sizes = product(range(1, height + 1), range(1, width + 1))
    return [
        (rows, columns)
        for rows, columns in sizes
        if 0.5 <= rows * width / (columns * height) <= 2 or abs(rows - columns * height / width) < 1
    ]


def _pooled(tokens: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """(T, L, D) float32 tokens of a grid, averaged to (T, h * w, D)."""
    images = tokens.reshape(len(tokens), *grid, -1).permute(0, 3, 1, 2)
    return F.adaptive_avg_pool2d(images, size).flatten(2).mT


def _centers(size: int, number: int) -> Tensor:
    """(number,) cell in the middle of every bin of an axis, the earlier of two."""
    bins = torch.arange(number)
    stops = -torch.div(-(bins + 1) * size, number, rounding_mode="floor")
    return (bins * size // number + stops - 1) // 2
