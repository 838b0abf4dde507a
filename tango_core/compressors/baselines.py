"""Baselines: all tokens, the highest scores, and controls that ignore token values.

Controls (`Random`, `Uniform`, `FewerFrames`, `PoolTime`, `PoolSpace`, `Block`) are simple
reductions that a pruning method must beat. The comparison follows VTC-Bench (arXiv 2510.07143),
which is about images; the definitions for video are this project's. The last four keep whole frames
or grids, so they match a retention only approximately; reports show the share that they actually
keep.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.combination import Combination
from tango_core.compressors.base import Compressor, ExactBudget, keep, num_kept
from tango_core.compressors.options import Count, Index, Share
from tango_core.ops.budgets import evenly
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.types import VisualFeatures

logger = logging.getLogger(__name__)

# (K,) kept, (N,) sources, (K + 1,) offsets, (N,) weights of a `Combination`, on the host.
_Averages = tuple[Tensor, Tensor, Tensor, Tensor]
# Cache size in clip shapes; the clips of one data set have few different shapes.
_REMEMBERED = 32


@dataclass(frozen=True)
class Full(Compressor):
    """Keep every token; also the compressor of methods that act only inside the model.

    Attributes:
        retention: Always 1; not an option.
    """

    retention: Share = field(default=1.0, init=False)

    def _plan(self, features: VisualFeatures) -> Combination:
        """All tokens, in order."""
        return keep(features, torch.arange(features.tokens.shape[:2].numel()))


@dataclass(frozen=True)
class TopK(ExactBudget):
    """Keep `round(retention * T * L)` tokens: the highest-scoring ones of every frame.

    Equal scores go to the lowest position.

    Scores are normalised within a frame, so they rank tokens only within a frame: the budget is
    divided over the frames as evenly as whole tokens allow.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        score: `"saliency"` (p-attn) or `"attention"` (attn) of `VisualFeatures`.
    """

    score: Literal["saliency", "attention"] = "saliency"

    @property
    def needs(self) -> frozenset[str]:
        """The score that ranks tokens."""
        return frozenset({self.score})

    def _plan(self, features: VisualFeatures) -> Combination:
        """Rank within each frame and cut at the frame's quota."""
        scores = features.signal(self.score)
        quotas = evenly(num_kept(scores.numel(), self.retention), len(scores))
        kept = take_ranked(rank_descending(scores.float()), quotas)
        return keep(features, kept.sort().values)


@dataclass(frozen=True)
class Random(ExactBudget):
    """Keep `round(retention * T * L)` tokens drawn without replacement.

    The draw depends on the seed and on T * L alone, so every clip of one shape keeps the same
    positions, on any device.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        seed: Seed of the draw, 0 or larger.
    """

    seed: Index = 0

    def _plan(self, features: VisualFeatures) -> Combination:
        """Draw on the CPU, where the generator gives the same numbers on every machine."""
        total = features.tokens.shape[0] * features.tokens.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randperm(total, generator=generator)[: num_kept(total, self.retention)]
        return keep(features, drawn.sort().values)


@dataclass(frozen=True)
class Uniform(ExactBudget):
    """Keep `round(retention * T * L)` tokens at even steps in raster order, frame after frame.

    Token i of K is the middle of the i-th of K equal intervals of the flat sequence, computed in
    integer arithmetic, so the positions are distinct and symmetric for every shape.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
    """

    def _plan(self, features: VisualFeatures) -> Combination:
        """Take the middle of every interval."""
        total = features.tokens.shape[0] * features.tokens.shape[1]
        kept = num_kept(total, self.retention)
        middles = (2 * torch.arange(kept) + 1) * total
        return keep(features, torch.div(middles, 2 * kept, rounding_mode="floor"))


@dataclass(frozen=True)
class _FrameControl(Compressor):
    """A control whose token count is a multiple of the tokens per frame.

    Attributes:
        budget: Both are the nearest whole number of frames.
    """

    added_options: ClassVar[dict[str, str]] = {"budget": "official"}

    budget: Literal["official", "exact"] = "official"

    def num_frames_kept(self, num_frames: int) -> int:
        """`retention` of the frames, rounded to the nearest whole number, at least 1.

        A clip of one frame keeps all its tokens, with a warning.
        """
        if num_frames == 1:
            logger.warning(
                "%s keeps all tokens of a clip of one frame", self.entry_name or type(self).__name__
            )
        return num_kept(num_frames, self.retention)

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """A whole frame, because at least one frame is kept."""
        return grid[0] * grid[1]


@dataclass(frozen=True)
class FewerFrames(_FrameControl):
    """Keep all tokens of F = max(1, round(retention * T)) frames, unchanged.

    Frame i of F is floor(i * (T - 1) / (F - 1)), the rule by which frames are sampled from a file;
    for F = 1 it is the first frame. On models that encode every frame independently this equals
    decoding only these frames. A clip of one frame keeps everything.

    Attributes:
        retention: Share of the frames to keep, in (0, 1].
    """

    entry_name: ClassVar[str] = "fewer_frames"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Take whole frames."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        kept = self.num_frames_kept(num_frames)
        frames = torch.arange(kept) * (num_frames - 1) // max(1, kept - 1)
        return keep(
            features,
            (frames[:, None] * tokens_per_frame + torch.arange(tokens_per_frame)).flatten(),
        )


@dataclass(frozen=True)
class PoolTime(_FrameControl):
    """Average F = max(1, round(retention * T)) groups of consecutive frames per grid position.

    Group i of F is frames floor(i * T / F) to floor((i + 1) * T / F), the last one not included;
    its tokens get the position of the group's middle frame, the earlier of two. A clip of one frame
    keeps everything.

    Attributes:
        retention: Share of the frames to keep, in (0, 1].
    """

    entry_name: ClassVar[str] = "pool_time"

    def _plan(self, features: VisualFeatures) -> Combination:
        """Average group after group."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        kept = self.num_frames_kept(num_frames)
        return _plan_of(features, _grouped(num_frames, tokens_per_frame, kept))


@lru_cache(_REMEMBERED)
def _grouped(num_frames: int, tokens_per_frame: int, kept: int) -> _Averages:
    """The averages of T frames of L tokens in `kept` groups."""
    bounds = [index * num_frames // kept for index in range(kept + 1)]
    places = torch.arange(num_frames * tokens_per_frame).view(num_frames, tokens_per_frame)
    groups = [places[first:last] for first, last in pairwise(bounds)]
    counts = torch.tensor([len(group) for group in groups])
    return _averages(
        torch.cat([group[(len(group) - 1) // 2] for group in groups]),
        torch.cat([group.T.flatten() for group in groups]),
        counts.repeat_interleave(tokens_per_frame),
    )


@dataclass(frozen=True)
class PoolSpace(Compressor):
    """Average every frame of H x W tokens to h x w, as adaptive average pooling does.

    Bin i of an axis of n into m is floor(i * n / m) to ceil((i + 1) * n / m), so bins may overlap
    by one; its token gets the position of the bin's centre cell, the earlier of two.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        budget: `"official"` is h = round(H * sqrt(retention)) and w = round(retention * H * W / h);
            `"exact"` is the grid with the count nearest to retention * H * W among those with
            about the frame's aspect ratio; ties go to the nearest aspect ratio.
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
        """Half a column per frame, or a single token if a frame keeps only one."""
        return num_frames * max(1.0, grid[0] / 2)

    def _plan(self, features: VisualFeatures) -> Combination:
        """Average the cells of every bin, frame after frame."""
        size = self.pooled_grid(features.grid)
        return _plan_of(features, _pooled(len(features.tokens), features.grid, size))


@lru_cache(_REMEMBERED)
def _pooled(num_frames: int, grid: tuple[int, int], size: tuple[int, int]) -> _Averages:
    """The averages of T frames of one grid."""
    cells = torch.arange(grid[0] * grid[1]).view(grid)
    rows, columns = (_bins(*axis) for axis in zip(grid, size, strict=True))
    bins = [cells[row, column] for row in rows for column in columns]
    kept = torch.stack([cell[tuple((side - 1) // 2 for side in cell.shape)] for cell in bins])
    counts = torch.tensor([cell.numel() for cell in bins])
    starts = torch.arange(num_frames)[:, None] * cells.numel()
    return _averages(
        (kept + starts).flatten(),
        (torch.cat([cell.flatten() for cell in bins]) + starts).flatten(),
        counts.repeat(num_frames),
    )


def grids_of_shape(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Grids up to (H, W) whose aspect ratio is within a factor of 2 of the frame's, if any.

    Choosing only by count would give strips: 3 x 11 for a fifth of 13 x 13.
    """
    height, width = grid
    sizes = product(range(1, height + 1), range(1, width + 1))
    return [
        (rows, columns)
        for rows, columns in sizes
        if 0.5 <= rows * width / (columns * height) <= 2 or abs(rows - columns * height / width) < 1
    ]


def _bins(size: int, number: int) -> list[slice]:
    """The `number` bins of an axis of length `size`."""
    return [slice(i * size // number, -(-(i + 1) * size // number)) for i in range(number)]


@dataclass(frozen=True)
class Block(Compressor):
    """Keep ceil(H / factor) * ceil(W / factor) tokens of every frame: one of each square block.

    Blocks start at the top left; blocks at the right and bottom edges may be smaller. If the factor
    does not divide the grid, more than 1 / factor^2 of the tokens are kept.

    Attributes:
        factor: Side of a block in tokens, 1 or larger; 1 keeps everything.
        keep: `"first"` keeps the top-left token of a block, `"random"` a random one by `seed`,
            `"mean"` the average of its tokens, at the position of the first.
        seed: Seed of the draw, 0 or larger.
        retention: 1 / factor^2; not an option.
    """

    factor: Count = 2
    keep: Literal["first", "random", "mean"] = "first"
    seed: Index = 0
    retention: Share = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        """Check the options."""
        if self.factor:  # 0 is refused below
            object.__setattr__(self, "retention", 1 / self.factor**2)
        super().__post_init__()

    def _identity_options(self) -> dict[str, object]:
        """Options; the seed is omitted unless it is used."""
        options = super()._identity_options()
        if self.keep != "random":
            del options["seed"]
        return options

    def most_rounding(self, num_frames: int, grid: tuple[int, int]) -> float:
        """Number of tokens from smaller blocks at the right and bottom edges of all frames."""
        kept = -(-grid[0] // self.factor) * -(-grid[1] // self.factor)
        return num_frames * max(2.0, kept - self.retention * grid[0] * grid[1])

    def _plan(self, features: VisualFeatures) -> Combination:
        """Number the blocks of a frame in raster order and keep one token of each."""
        num_frames, tokens_per_frame, _ = features.tokens.shape
        blocks, firsts = _blocks(features.grid, self.factor)
        starts = torch.arange(num_frames)[:, None] * tokens_per_frame
        if self.keep == "random":
            generator = torch.Generator().manual_seed(self.seed)
            draw = torch.rand(num_frames, tokens_per_frame, generator=generator)
            # The cell with the largest draw of every block: draws are below 1, block numbers 1
            # apart.
            order = (draw - blocks.float()).argsort(dim=1, descending=True, stable=True)
            first_of = torch.searchsorted(blocks.sort().values, torch.arange(len(firsts)))
            cells = order[:, first_of] + starts
            return keep(features, cells.flatten().sort().values)
        cells = (firsts + starts).flatten()
        if self.keep == "first":
            return keep(features, cells)
        members, counts = blocks.argsort(stable=True), blocks.bincount()
        sources = (members + starts).flatten()
        return _plan_of(features, _averages(cells, sources, counts.repeat(num_frames)))


def _blocks(grid: tuple[int, int], factor: int) -> tuple[Tensor, Tensor]:
    """(H * W,) number of every cell's block, and the first cell of every block."""
    height, width = grid
    per_row = -(-width // factor)
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    numbers = rows // factor * per_row + columns // factor
    is_first = (rows % factor == 0) & (columns % factor == 0)
    return numbers.flatten(), is_first.flatten().nonzero()[:, 0]


def _averages(kept: Tensor, sources: Tensor, counts: Tensor) -> _Averages:
    """Averages per kept token: consecutive sources, `counts[i]` of them for token i."""
    offsets = F.pad(counts.cumsum(0), (1, 0))
    return kept, sources, offsets, (1 / counts).repeat_interleave(counts)


def _plan_of(features: VisualFeatures, averages: _Averages) -> Combination:
    kept, sources, offsets, weights = averages
    device = features.tokens.device
    return Combination(
        # Copied, because the caller may write to the positions of its result.
        indices=kept.to(device, copy=True),
        grid=(len(features.tokens), *features.grid),
        timestamps=features.timestamps,
        offsets=offsets.to(device),
        sources=sources.to(device),
        weights=weights.to(device),
    )
