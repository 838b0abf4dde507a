"""Towers that merge patches (Qwen2.5-VL, Qwen3-VL): blocks, signals of the last one, encoder.

Both have the same kind of block: one projection to queries, keys and values, a rotary embedding
over row and column, and attention within windows or a temporal position. The families
define which rows attend to each other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.files import PatchFiles
from tango_core.models.kernels import attend, can_compile, compiled
from tango_core.models.towers.encoder import Grid, TowerEncoder
from tango_core.models.towers.patches import pair_frames, patches_by_row, to_patches
from tango_core.models.towers.trace import LayerNotes, Observer
from tango_core.ops.saliency import mean_query_attention
from tango_core.types import VideoFrames

# Attention probabilities in memory at once, in float32 numbers: a quarter of a GB. A frame of 448 x
# 448 pixels has 1024 patches, so all its 16 heads fit.
_PROBABILITIES_AT_ONCE = 2**26

# Cache size of plans in clip shapes; the clips of a benchmark have few shapes.
_SHAPES = 8


def before_attention(
    block: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a block, the first two rotated.

    Args:
        block: Stock block.
        hidden: (S, Dv) its input.
        rotary: Cosine and sine, (S, head_dim) each.

    Returns:
        (S, heads, head_dim) each.
    """
    packed = block.attn.qkv(block.norm1(hidden))
    parts = packed.view(len(hidden), 3, block.attn.num_heads, -1)
    queries, keys, values = parts.unbind(dim=1)
    return rotated(queries, *rotary), rotated(keys, *rotary), values


def after_attention(block: Any, hidden: Tensor, attended: Tensor) -> Tensor:
    """The output of a block.

    Args:
        block: Stock block.
        hidden: (S, Dv) its input.
        attended: (S, heads * head_dim).
    """
    hidden = hidden + block.attn.proj(attended)
    return hidden + block.mlp(block.norm2(hidden))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class BlockHalves:
    """The parts of a tower's blocks before and after the attention, possibly compiled.

    Attributes:
        before: `before_attention`, or the same compiled.
        after: `after_attention`, or the same compiled.
    """

    before: Callable[[Any, Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor, Tensor]]
    after: Callable[[Any, Tensor, Tensor], Tensor]


STOCK = BlockHalves(before_attention, after_attention)


def block_halves(wanted: bool, device: torch.device) -> BlockHalves:
    """The halves for a tower.

    Args:
        wanted: `ModelSpec.compile`.
        device: Of the tower.
    """
    if not can_compile(wanted, device):
        return STOCK
    return BlockHalves(compiled(before_attention), compiled(after_attention))


@dataclass(frozen=True, eq=False)
class LastBlock:
    """Input of a tower's last block, from which signals are computed.

    Attributes:
        block: The block, with `norm1` and `attn`.
        states: (T * P, Dv) its input; the patches of a token are contiguous.
        rotary: Cosine and sine of every patch, (T * P, head_dim) each.
        num_positions: T.
        merge: Number of patches per token.
    """

    block: nn.Module
    states: Tensor
    rotary: tuple[Tensor, Tensor]
    num_positions: int
    merge: int

    def projected(self) -> tuple[Tensor, Tensor]:
        """Queries and keys before the rotary embedding, (T * P, heads, head_dim) each."""
        block: Any = self.block
        packed = block.attn.qkv(block.norm1(self.states))
        queries, keys, _ = packed.view(len(packed), 3, block.attn.num_heads, -1).unbind(dim=1)
        return queries, keys

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Queries and keys after the rotary embedding."""
        queries, keys = self.projected()
        return rotated(queries, *self.rotary), rotated(keys, *self.rotary)


def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """(S, heads, head_dim) after the rotary embedding, computed in float32 as the towers do.

    Args:
        states: Queries or keys.
        cosine: (S, head_dim).
        sine: (S, head_dim).
    """
    values = states.float()
    first, second = values.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    mixed: Tensor = values * cosine[:, None].float() + turned * sine[:, None].float()
    return mixed.to(states.dtype)


def attend_within(
    parts: tuple[Tensor, Tensor, Tensor], sizes: Sequence[tuple[int, int]], scale: float
) -> Tensor:
    """Attention within contiguous windows, with one call per window size.

    Args:
        parts: Queries, keys, values, (S, heads, d) each.
        sizes: (windows, length) in the order of the sequence.
        scale: Of the logits.

    Returns:
        (S, heads * d).
    """
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


def mean_query_saliency(last: LastBlock) -> Tensor:
    """Attention of each frame's mean query to its tokens in the last block ("p-attn").

    Returns:
        (T, L) float32; every row sums to 1.
    """
    queries, keys = last.rotated()
    return mean_query_attention(queries, keys, last.num_positions, last.merge)


def received_patch_attention(last: LastBlock) -> Tensor:
    """Mean self-attention that each token's patches receive together in the last block ("attn").

    Softmax in float32, mean over heads, mean over the frame's patches as queries, sum over the
    patches of a token.

    Returns:
        (T, L) float32; every row sums to 1.
    """
    received, num_heads = _received_by_heads(last)
    return received.view(len(received), -1, last.merge).sum(dim=2) / num_heads


def received_by_patches(last: LastBlock) -> Tensor:
    """Mean self-attention that each patch receives, in the order of the block's input.

    Returns:
        (T, P) float32; every row sums to 1.
    """
    received, num_heads = _received_by_heads(last)
    return received / num_heads


def _received_by_heads(last: LastBlock) -> tuple[Tensor, int]:
    """(T, P) attention that patches receive, summed over heads, and the number of heads.

    One frame at a time; of large frames a few heads at a time.
    """
    attention: Any = last.block.attn
    queries, keys = (
        part.view(last.num_positions, -1, *part.shape[1:]).transpose(1, 2)
        for part in last.rotated()
    )
    num_heads, num_patches = queries.shape[1:3]
    at_once = max(1, _PROBABILITIES_AT_ONCE // num_patches**2)
    received = []
    for query, key in zip(queries, keys, strict=True):
        total = torch.zeros(num_patches, device=query.device)
        for heads, their_keys in zip(query.split(at_once), key.split(at_once), strict=True):
            logits = heads.float() @ their_keys.float().mT * attention.scaling
            total += logits.softmax(dim=-1).mean(dim=1).sum(dim=0)
        received.append(total)
    return torch.stack(received), num_heads


def mean_patch_keys(last: LastBlock) -> Tensor:
    """Keys of the last block, averaged over heads and over the patches of a token.

    Taken before the rotary embedding, to compare content and not positions.

    Returns:
        (T, L, head_dim) float32.
    """
    _, keys = last.projected()
    averaged = keys.float().mean(dim=1).view(last.num_positions, -1, last.merge, keys.shape[-1])
    return averaged.mean(dim=2)


SIGNALS: Mapping[str, Callable[[LastBlock], Tensor]] = {
    "attention": received_patch_attention,
    "keys": mean_patch_keys,
    "saliency": mean_query_saliency,
}


@dataclass(frozen=True, eq=False)
class PatchTowerOutput:
    """Outputs of one pass through a tower.

    Attributes:
        tokens: (T, L, D) merged tokens, raster order.
        last_block: The last block with its input, in the order of the tower.
        raster: (T * L,) int64: entry i is the index of raster token i in the tower's order; `None`
            if that is raster order.
        companions: (T, L, E, D) DeepStack rows; `None` for towers without.
    """

    tokens: Tensor
    last_block: LastBlock
    raster: Tensor | None = None
    companions: Tensor | None = None

    def signal(self, name: str) -> Tensor:
        """One of the four signals, in raster order."""
        if name == "frame_embeddings":
            return self.tokens.float().mean(dim=1)
        maps = SIGNALS[name](self.last_block)
        return maps if self.raster is None else maps.flatten(0, 1)[self.raster].view(maps.shape)


class PatchEncoder(TowerEncoder):
    """Tower and patch merger; frames are taken in pairs.

    T is the number of frame pairs, an odd last frame being repeated; the grid is that of the merged
    tokens and follows the shape of the clip.

    Args:
        spec: From `describe_model`.
        files: Of the family.
    """

    def __init__(self, spec: ModelSpec, files: PatchFiles) -> None:
        super().__init__(spec, files)
        self.layout = files.patch_layout(self.config)
        self.frames_per_row = self.layout.frames
        self._halves = block_halves(spec.compile, self.device)
        self._plan = lru_cache(maxsize=_SHAPES)(self.plan)
        normalisation = files.normalisation(resolve_checkpoint(spec.path, spec.revision))
        self._scale = normalisation.scale
        self._mean, self._std = normalisation.on(self.device)

    @abstractmethod
    def times(self, timestamps: NDArray[np.float64], num_positions: int) -> NDArray[np.float64]:
        """Seconds of every temporal position."""

    @abstractmethod
    def plan(self, num_positions: int, grid: Grid) -> Any:
        """Order and positions of a clip's patches, as needed by `run`."""

    @abstractmethod
    def run(self, patches: Tensor, plan: Any, *observe: Observer) -> PatchTowerOutput:
        """Run the tower on (T * P, values) patches of `to_patches`."""

    @abstractmethod
    def position_bytes(self, num_patches: int) -> int:
        """Memory that one temporal position takes in the tower and the signals, rounded up."""

    @property
    def tower(self) -> Any:
        """The stock tower."""
        return self.model

    @property
    def num_layers(self) -> int:
        """Blocks of the tower."""
        return len(self.model.blocks)

    @property
    def like(self) -> Tensor:
        """An empty tensor of the device and dtype that the tower computes in."""
        return torch.empty(0, dtype=self._dtype, device=self.device)

    def frame_bytes(self, height: int, width: int) -> int:
        """Memory of one frame; see `VisionEncoder.frame_bytes`."""
        height, width = (side // self.layout.patch for side in (height, width))
        return self.position_bytes(height * width) // self.layout.frames

    def grid_of(self, frames: VideoFrames) -> Grid:
        """The grid of merged tokens."""
        return self.layout.grid(*frames.pixels.shape[1:3])

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        return grid[0] * self.layout.merge, grid[1] * self.layout.merge

    def rows_of(self, frames: VideoFrames) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Pairs of frames."""
        pairs = pair_frames(frames.pixels, self.layout.frames)
        return pairs, self.times(frames.timestamps, len(pairs))

    def encode_rows(
        self, rows: Tensor, grid: Grid, needs: frozenset[str], tokens: bool
    ) -> dict[str, Tensor]:
        """Always computes the tokens too; see `TowerEncoder.encode_rows`."""
        output = self.run(self._patches(rows), self._plan(len(rows), grid))
        maps = {"tokens": output.tokens, **{name: output.signal(name) for name in needs}}
        if output.companions is not None:
            maps["companions"] = output.companions
        return maps

    def trace_rows(self, rows: Tensor, grid: Grid, layers: Collection[int]) -> dict[str, Tensor]:
        """See `TowerEncoder.trace_rows`."""
        plan, merge = self._plan(len(rows), grid), self.layout.merge
        raster: Tensor | None = getattr(plan, "raster", None)

        def by_row(values: Tensor) -> Tensor:
            if raster is not None:
                tokens = values.view(len(raster), -1, values.shape[-1])
                values = tokens[raster].flatten(0, 1)
            return patches_by_row(values, grid, merge)

        notes = LayerNotes(layers, by_row)
        output = self.run(self._patches(rows), plan, notes)
        attention = received_by_patches(output.last_block).reshape(-1, 1)
        return notes.maps(by_row(attention).squeeze(-1))

    def _patches(self, groups: Tensor) -> Tensor:
        """Normalised patches, see `to_patches`."""
        return to_patches(groups, self.layout, self._scale, self._mean, self._std)
