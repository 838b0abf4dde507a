"""Towers that merge patches (Qwen2.5-VL, Qwen3-VL): one loop over blocks, signals of the last one.

Both have the same kind of block: one projection to queries, keys and values, a rotary embedding
over row and column, and attention within windows or a temporal position. A family plans the order
of a clip's patches and which of them attend to each other (`PatchPlan`). Everything that leaves
this module is in raster order.

Frames arrive resized: `FrameSpec` with `max_pixels`, `min_pixels` and `multiple` is qwen-vl-utils'
rule, and the decode stage applies it. torchvision is not needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.family import PatchFamily
from tango_core.models.kernels import attend, pack_linears
from tango_core.models.towers.encoder import Grid, TowerEncoder
from tango_core.models.towers.trace import LayerNotes, Observer, unobserved
from tango_core.ops.saliency import mean_query_attention
from tango_core.types import VideoFrames

# Attention probabilities in memory at once, in float32 numbers: a quarter of a GB. A frame of 448 x
# 448 pixels has 1024 patches, so all its 16 heads fit.
_PROBABILITIES_AT_ONCE = 2**26

# Cache size of plans in clip shapes; the clips of a benchmark have few shapes.
_SHAPES = 8

Rotary = tuple[Tensor, Tensor]


def pair_frames(pixels: NDArray[np.uint8], frames: int) -> NDArray[np.uint8]:
    """Group consecutive frames; the last one is repeated until the last group is full.

    Args:
        pixels: (F, h, w, 3).
        frames: Frames of a group.

    Returns:
        (T, frames, h, w, 3).
    """
    lacking = -len(pixels) % frames
    if lacking:
        pixels = np.concatenate([pixels, pixels[-1:].repeat(lacking, axis=0)])
    return pixels.reshape(-1, frames, *pixels.shape[1:])


def mean_timestamps(timestamps: NDArray[np.float64], frames: int) -> NDArray[np.float64]:
    """Seconds of every temporal position, as Qwen3-VL writes them: halfway through its frames.

    Args:
        timestamps: (F,) of the frames.
        frames: Frames of a group; the last frame is repeated as by `pair_frames`.

    Returns:
        (T,) float64: the mean of the first and the last frame of every group.
    """
    lacking = -len(timestamps) % frames
    groups = np.append(timestamps, timestamps[-1:].repeat(lacking)).reshape(-1, frames)
    middles: NDArray[np.float64] = (groups[:, 0] + groups[:, -1]) / 2
    return middles


def patches_by_row(values: Tensor, grid: tuple[int, int], merge: int) -> Tensor:
    """Reorder patches from the towers' order to raster order of the frame.

    Args:
        values: (T * P, C), the patches of a token together, tokens in raster order.
        grid: (H, W) tokens.
        merge: Side of a token in patches.

    Returns:
        (T, P, C), patches row by row over the whole frame.
    """
    split = values.reshape(-1, *grid, merge, merge, values.shape[-1])
    return split.transpose(2, 3).flatten(1, 4)


def to_patches(values: Tensor, patch: int, merge: int) -> Tensor:
    """Cut normalised frames into patches, token by token in raster order.

    Args:
        values: (T, frames, 3, h, w) float32.
        patch: Side of a patch in pixels.
        merge: Side of a token in patches.

    Returns:
        (T * H * W * merge * merge, 3 * frames * patch * patch) float32; the patches of a token
        follow each other; inside a patch colour, frame, row, column.
    """
    num_positions, num_frames, colours, height, width = values.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    sides = (rows, merge, patch, columns, merge, patch)
    cut = values.view(num_positions, num_frames, colours, *sides)
    ordered = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(-1, colours * num_frames * patch**2)


def before_attention(block: Any, hidden: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a block, the first two rotated.

    Args:
        block: Block of the tower, a module of transformers.
        hidden: (S, Dv) its input.
        rotary: Cosine and sine, (S, head_dim) each.

    Returns:
        (S, heads, head_dim) each.
    """
    queries, keys, values = _projected(block, hidden)
    return *apply_rotary_pos_emb_vision(queries, keys, *rotary), values


def after_attention(block: Any, hidden: Tensor, attended: Tensor) -> Tensor:
    """The output of a block.

    Args:
        block: Block of the tower, a module of transformers.
        hidden: (S, Dv) its input.
        attended: (S, heads * head_dim).
    """
    hidden = hidden + block.attn.proj(attended)
    return hidden + block.mlp(block.norm2(hidden))  # type: ignore[no-any-return]


def _projected(block: Any, hidden: Tensor) -> Sequence[Tensor]:
    """Queries, keys and values of a block before the rotary embedding."""
    packed: Tensor = block.attn.qkv(block.norm1(hidden))
    return packed.view(len(hidden), 3, block.attn.num_heads, -1).unbind(dim=1)


@dataclass(frozen=True, eq=False)
class PatchPlan:
    """Order and positions of a clip's patches in a tower, equal for all clips of one shape.

    Attributes:
        num_positions: T.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each, in the tower's order.
        embedding: (T * P, Dv) position embedding to add to the patches; `None` for none.
        order: (T * L,) int64: entry i is the raster index of the i-th token in the tower's order;
            `None` for raster order.
        windows: (windows, patches of each) for every size of window, the largest first; empty if
            all blocks attend within temporal positions.
        grouped: (T * P,) int64 permutation of the tower's order that makes windows of equal size
            contiguous; `None` if all have one size.
    """

    num_positions: int
    rotary: Rotary
    embedding: Tensor | None = None
    order: Tensor | None = None
    windows: tuple[tuple[int, int], ...] = ()
    grouped: Tensor | None = None

    def start(self, patches: Tensor) -> Tensor:
        """Input of the first block, from (T * P, Dv) embedded patches in raster order of tokens."""
        if self.embedding is not None:
            patches = patches + self.embedding
        return patches if self.order is None else in_order(patches, self.order)

    def raster(self, values: Tensor) -> Tensor:
        """(T * L, ...) values of tokens in raster order."""
        return values if self.order is None else _put_back(values, self.order)

    def attend(self, parts: Sequence[Tensor], scale: float, *, windowed: bool) -> Tensor:
        """(S, heads * d) attention within windows or temporal positions.

        Args:
            parts: Queries, keys, values, (S, heads, d) each.
            scale: Factor of the logits.
            windowed: Whether this block attends within windows.
        """
        if not windowed:
            per_position = len(parts[0]) // self.num_positions
            return _attend_within(parts, ((self.num_positions, per_position),), scale)
        if self.grouped is None:
            return _attend_within(parts, self.windows, scale)
        attended = _attend_within([part[self.grouped] for part in parts], self.windows, scale)
        return _put_back(attended, self.grouped)


def _put_back(values: Tensor, order: Tensor) -> Tensor:
    """Undo `values = original[order]` for a permutation."""
    original = torch.empty_like(values)
    original[order] = values
    return original


def in_order(values: Tensor, order: Tensor) -> Tensor:
    """Reorder (T * P, C) patch values, those of a token together, by an order of tokens."""
    return values.view(len(order), -1)[order].view(len(values), -1)


def _attend_within(
    parts: Sequence[Tensor], sizes: Sequence[tuple[int, int]], scale: float
) -> Tensor:
    """Attention within contiguous windows, with one call per (windows, length)."""
    attended: list[Tensor] = []
    start = 0
    for count, length in sizes:
        stop = start + count * length
        queries, keys, values = (
            part[start:stop].view(count, length, *part.shape[1:]).transpose(1, 2) for part in parts
        )
        together = attend(queries, keys, values, scale=scale)
        attended.append(together.transpose(1, 2).reshape(count * length, -1))
        start = stop
    return attended[0] if len(attended) == 1 else torch.cat(attended)


@dataclass(frozen=True, eq=False)
class PatchTowerOutput:
    """Outputs of one pass through a tower.

    Attributes:
        tokens: (T, L, D) merged tokens, raster order.
        block: The last block.
        states: (T * P, Dv) its input, in the tower's order.
        plan: Order and positions of the patches.
        merge: Number of patches per token.
        companions: (T, L, E, D) DeepStack rows; `None` for towers without.
    """

    tokens: Tensor
    block: Any
    states: Tensor
    plan: PatchPlan
    merge: int
    companions: Tensor | None = None

    def signal(self, name: str) -> Tensor:
        """One of the four signals, in raster order.

        Saliency is the attention of each frame's mean query to its tokens in the last block
        ("p-attn"); attention is what a token's patches receive together ("attn"); a row of either
        sums to 1. Keys are taken before the rotary embedding, to compare content and not positions,
        and averaged over heads and the patches of a token.
        """
        count = self.plan.num_positions
        if name == "frame_embeddings":
            return self.tokens.float().mean(dim=1)
        if name == "keys":
            keys = _projected(self.block, self.states)[1]
            maps = keys.float().mean(dim=1).view(count, -1, self.merge, keys.shape[-1]).mean(dim=2)
        elif name == "saliency":
            queries, keys, _ = before_attention(self.block, self.states, self.plan.rotary)
            maps = mean_query_attention(queries, keys, count, self.merge)
        else:
            maps = self.received().view(count, -1, self.merge).sum(dim=2)
        return self.plan.raster(maps.flatten(0, 1)).view(maps.shape)

    def received(self) -> Tensor:
        """(T, P) float32 mean self-attention that each patch receives, in the tower's order.

        One frame at a time; of large frames a few heads at a time.
        """
        queries, keys, _ = (
            part.view(self.plan.num_positions, -1, *part.shape[1:]).transpose(1, 2)
            for part in before_attention(self.block, self.states, self.plan.rotary)
        )
        num_heads, num_patches = queries.shape[1:3]
        at_once = max(1, _PROBABILITIES_AT_ONCE // num_patches**2)
        received = []
        for query, key in zip(queries, keys, strict=True):
            total = torch.zeros(num_patches, device=query.device)
            for heads, their_keys in zip(query.split(at_once), key.split(at_once), strict=True):
                logits = heads.float() @ their_keys.float().mT * self.block.attn.scaling
                total += logits.softmax(dim=-1).mean(dim=1).sum(dim=0)
            received.append(total / num_heads)
        return torch.stack(received)


class PatchEncoder(TowerEncoder):
    """Tower and patch merger; frames are taken in pairs.

    T is the number of frame pairs, an odd last frame being repeated; the grid is that of the merged
    tokens and follows the shape of the clip. A tower with DeepStack gives every token the rows of
    its position as companions.

    Args:
        spec: From `describe_model`.
        family: Of the model.
    """

    def __init__(self, spec: ModelSpec, family: PatchFamily) -> None:
        super().__init__(spec, family)
        self.vision = self.config.vision_config
        self.frames_per_row = self.vision.temporal_patch_size
        pack_linears([self.model], self._dtype, self.device)
        self._plan = lru_cache(maxsize=_SHAPES)(self.plan)
        self._deep = list(getattr(self.model, "deepstack_visual_indexes", ()))

    @abstractmethod
    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """Seconds of every temporal position."""

    @abstractmethod
    def plan(self, num_positions: int, grid: Grid) -> PatchPlan:
        """Order and positions of the patches of a clip."""

    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""
        return self.model.blocks  # type: ignore[no-any-return]

    def projectors(self, grid: Grid) -> tuple[Sequence[nn.Module], int]:
        """Patch mergers."""
        return [self.model.merger, *getattr(self.model, "deepstack_merger_list", ())], prod(grid)

    def reach(self, positions: int) -> list[int]:
        """See `TowerEncoder.reach`; a window at the edge of a frame may be smaller."""
        whole = getattr(self.model, "fullatt_block_indexes", range(self.num_layers))
        size = getattr(self.model, "window_size", 0) // self.vision.patch_size
        return [
            positions if index in whole else min(positions, size**2)
            for index in range(self.num_layers)
        ]

    @property
    def like(self) -> Tensor:
        """An empty tensor of the device and dtype that the tower computes in."""
        return torch.empty(0, dtype=self._dtype, device=self.device)

    def run(
        self, patches: Tensor, plan: PatchPlan, observe: Observer = unobserved
    ) -> PatchTowerOutput:
        """Run all blocks and mergers on (T * P, values) patches of `to_patches`.

        `observe` gets (T * P, Dv) in the tower's order.
        """
        stock = self.model
        hidden = plan.start(stock.patch_embed(patches))
        whole = getattr(stock, "fullatt_block_indexes", range(len(stock.blocks)))
        observe(0, hidden)
        deep: list[Tensor] = []
        for index, block in enumerate(stock.blocks):
            block_input = hidden
            parts = before_attention(block, hidden, plan.rotary)
            attended = plan.attend(parts, block.attn.scaling, windowed=index not in whole)
            hidden = after_attention(block, hidden, attended)
            observe(index + 1, hidden)
            if index in self._deep:
                deep.append(stock.deepstack_merger_list[self._deep.index(index)](hidden))
        tokens, *companions = (
            plan.raster(rows).view(plan.num_positions, -1, rows.shape[-1])
            for rows in (stock.merger(hidden), *deep)
        )
        merge = stock.spatial_merge_size**2
        stacked = torch.stack(companions, dim=2) if companions else None
        return PatchTowerOutput(tokens, block, block_input, plan, merge, stacked)

    def grid_of(self, frames: VideoFrames) -> Grid:
        """The grid of merged tokens."""
        height, width = frames.pixels.shape[1:3]
        side = self.vision.patch_size * self.vision.spatial_merge_size
        if height % side or width % side or not height * width:
            raise InputError(f"frames must have sides that are multiples of {side} pixels")
        return height // side, width // side

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        merge = self.vision.spatial_merge_size
        return grid[0] * merge, grid[1] * merge

    def rows_of(self, frames: VideoFrames) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Pairs of frames."""
        pairs = pair_frames(frames.pixels, self.frames_per_row)
        return pairs, self.times(frames.timestamps, len(pairs))

    def encode_rows(self, rows: Tensor, grid: Grid, needs: frozenset[str]) -> dict[str, Tensor]:
        """See `TowerEncoder.encode_rows`."""
        output = self.run(self._patches(rows), self._plan(len(rows), grid))
        maps = {"tokens": output.tokens, **{name: output.signal(name) for name in needs}}
        if output.companions is not None:
            maps["companions"] = output.companions
        return maps

    def trace_rows(self, rows: Tensor, grid: Grid, layers: Collection[int]) -> dict[str, Tensor]:
        """See `TowerEncoder.trace_rows`."""
        plan, merge = self._plan(len(rows), grid), self.vision.spatial_merge_size

        def by_row(values: Tensor) -> Tensor:
            tokens = plan.raster(values.view(-1, merge**2, values.shape[-1]))
            return patches_by_row(tokens.flatten(0, 1), grid, merge)

        notes = LayerNotes(layers, by_row)
        output = self.run(self._patches(rows), plan, notes)
        return notes.maps(by_row(output.received().reshape(-1, 1)).squeeze(-1))

    def _patches(self, groups: Tensor) -> Tensor:
        """Normalised patches, see `to_patches`."""
        return to_patches(
            self._normalisation(groups), self.vision.patch_size, self.vision.spatial_merge_size
        )
