"""Block: keep one token of every block of cells of a frame, the first, a random one or the mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, keep
from tango_core.compressors.controls.averages import averages
from tango_core.compressors.options import raise_if_below
from tango_core.types import VisualFeatures


@dataclass(frozen=True)
class Block(Compressor):
    """Keep ceil(H / factor) * ceil(W / factor) tokens of every frame: one of each square block.

    Blocks start at the top left; those at the other edges may be smaller. On grids that the factor
    does not divide more than 1 / factor^2 of the tokens are kept.

    Attributes:
        factor: Side of a block in tokens, 1 or larger; 1 keeps everything.
        keep: `"first"` is the token at the top left of a block, `"random"` a seeded one of it,
            `"mean"` the average of its tokens, at the place of the first.
        seed: Seed of the draw, 0 or larger.
        retention: 1 / factor^2; not an option.
    """

    factor: int = 2
    keep: Literal["first", "random", "mean"] = "first"
    seed: int = 0
    retention: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        """Check the options."""
        raise_if_below(self, 1, "factor")
        raise_if_below(self, 0, "seed")
        object.__setattr__(self, "retention", 1 / self.factor**2)
        super().__post_init__()

    def _identity_options(self) -> dict[str, object]:
        """Options; without a draw the seed is none."""
        options = super()._identity_options()
        if self.keep != "random":
            del options["seed"]
        return options

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """The smaller blocks at two edges of every frame, where the grid has them."""
        kept = -(-grid[0] // self.factor) * -(-grid[1] // self.factor)
        return num_frames * max(2.0, kept - self.retention * grid[0] * grid[1])

    def _plan(self, features: VisualFeatures) -> Combination:
        """Number the blocks of a frame in raster order; each gives one token."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        blocks, firsts = _blocks(features.grid, self.factor)
        starts = torch.arange(num_frames)[:, None] * tokens_per_frame
        if self.keep == "random":
            generator = torch.Generator().manual_seed(self.seed)
            draw = torch.rand(num_frames, tokens_per_frame, generator=generator)
            # Of every block the cell with the largest draw; draws are below 1, blocks 1 apart.
            order = (draw - blocks.float()).argsort(dim=1, descending=True, stable=True)
            first_of = torch.searchsorted(blocks.sort().values, torch.arange(len(firsts)))
            cells = order[:, first_of] + starts
            return keep(features, cells.flatten().sort().values)
        cells = (firsts + starts).flatten()
        if self.keep == "first":
            return keep(features, cells)
        members, counts = blocks.argsort(stable=True), blocks.bincount()
        means = averages(cells, (members + starts).flatten(), counts.repeat(num_frames))
        return means.plan(features)


def _blocks(grid: tuple[int, int], factor: int) -> tuple[Tensor, Tensor]:
    """(H * W,) number of every cell's block, and the first cell of every block."""
    height, width = grid
    per_row = -(-width // factor)
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    numbers = rows // factor * per_row + columns // factor
    is_first = (rows % factor == 0) & (columns % factor == 0)
    return numbers.flatten(), is_first.flatten().nonzero()[:, 0]
