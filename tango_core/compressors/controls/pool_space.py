"""PoolSpace: average every frame to a smaller grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, Literal

import torch

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor
from tango_core.compressors.controls.averages import REMEMBERED, Averages, averages
from tango_core.types import VisualFeatures


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

    def _plan(self, features: VisualFeatures) -> Combination:
        """Average the cells of every bin, frame after frame."""
        size = self.pooled_grid(features.grid)
        return _pooled(len(features.tokens), features.grid, size).plan(features)


@lru_cache(REMEMBERED)
def _pooled(num_frames: int, grid: tuple[int, int], size: tuple[int, int]) -> Averages:
    """What becomes of T frames of one grid."""
    cells = torch.arange(grid[0] * grid[1]).view(grid)
    rows, columns = (_bins(*axis) for axis in zip(grid, size, strict=True))
    bins = [cells[row, column] for row in rows for column in columns]
    kept = torch.stack([cell[tuple((side - 1) // 2 for side in cell.shape)] for cell in bins])
    counts = torch.tensor([cell.numel() for cell in bins])
    starts = torch.arange(num_frames)[:, None] * cells.numel()
    return averages(
        (kept + starts).flatten(),
        (torch.cat([cell.flatten() for cell in bins]) + starts).flatten(),
        counts.repeat(num_frames),
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


def _bins(size: int, number: int) -> list[slice]:
    """Bins of an axis of some size."""
    return [slice(i * size // number, -(-(i + 1) * size // number)) for i in range(number)]
