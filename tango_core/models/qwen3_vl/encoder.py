"""The vision half of Qwen3-VL: stock tower with its mergers, frames taken in pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from tango_core.models.base import ModelSpec, VisionEncoder, raise_if_not_provided
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.frame_batches import FrameBatches
from tango_core.models.patch_blocks import block_halves
from tango_core.models.patch_signals import (
    mean_patch_keys,
    mean_query_saliency,
    received_by_patches,
    received_patch_attention,
)
from tango_core.models.patches import (
    mean_timestamps,
    pair_frames,
    patches_by_row,
    to_patches,
)
from tango_core.models.placement import resolve_device
from tango_core.models.qwen3_vl.checkpoint import (
    read_half_normalisation,
    read_patch_layout,
    read_qwen3_config,
    read_qwen3_extras,
    vision_half,
)
from tango_core.models.qwen3_vl.options import options_of
from tango_core.models.qwen3_vl.tower import (
    PatchPlaces,
    Qwen3TowerOutput,
    activation_bytes,
    plan_places,
    run_qwen3_tower,
)
from tango_core.models.sinks import sinks_on
from tango_core.models.trace import LayerNotes, Observer, TowerTrace, raise_if_no_layer, trace_of
from tango_core.models.upload import upload_clip
from tango_core.types import VideoFrames, VisualFeatures

# Grids whose positions are remembered: all clips of a benchmark have a few.
_SHAPES = 8

_SIGNALS: dict[str, Callable[[Qwen3TowerOutput], Tensor]] = {
    "attention": lambda output: received_patch_attention(output.last_block),
    "frame_embeddings": lambda output: output.tokens.float().mean(dim=1),
    "keys": lambda output: mean_patch_keys(output.last_block),
    "saliency": lambda output: mean_query_saliency(output.last_block),
}


class Qwen3Encoder(VisionEncoder):
    """Tower and mergers of Qwen3-VL.

    T is the number of frame pairs, an odd last frame being repeated; the grid is that of the merged
    tokens and follows the shape of the clip. `timestamps` are the middles of the pairs, which the
    prompt states. Every token has the DeepStack rows of its place as companions.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.device = resolve_device(spec.device)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        config = read_qwen3_config(checkpoint)
        self.tower: Qwen3VLVisionModel = load_module(
            lambda: Qwen3VLVisionModel._from_config(
                config.vision_config, attn_implementation="sdpa"
            ),
            checkpoint,
            vision_half,
            dtype=getattr(torch, spec.dtype),
            device=self.device,
        )
        self.layout = read_patch_layout(config)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._halves = block_halves(spec.compile, self.device)
        self._batches = FrameBatches(spec.encode_batch, self.device)
        self._places = lru_cache(maxsize=_SHAPES)(self._find_places)
        normalisation = read_half_normalisation(checkpoint)
        self._scale = normalisation.scale
        self._mean, self._std = normalisation.on(self.device)
        self._own_sinks = read_qwen3_extras(checkpoint).sinks

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        raise_if_not_provided(self.spec, needs)
        grid = self.layout.grid(*frames.pixels.shape[1:3])
        maps, timestamps = self._in_batches(
            frames, grid, lambda part: self._encode_batch(part, grid, needs)
        )
        return VisualFeatures(
            grid=grid,
            timestamps=timestamps,
            sinks=sinks_on(grid, self.spec.name, self.spec.sinks, self._own_sinks),
            source=frames.source,
            anchored=options_of(self.spec).companions == "anchor",
            **maps,
        )

    def frame_bytes(self, height: int, width: int) -> int:
        """Of one frame; see `VisionEncoder.frame_bytes`."""
        height, width = (side // self.layout.patch for side in (height, width))
        row_bytes = activation_bytes(self.tower.config, height * width, self._dtype.itemsize)
        return row_bytes // self.layout.frames

    @property
    def num_layers(self) -> int:
        """Blocks of the tower."""
        return len(self.tower.blocks)

    @torch.no_grad()
    def trace(self, frames: VideoFrames, layers: Collection[int]) -> TowerTrace:
        """What the tower's layers hold of a clip; see `VisionEncoder.trace`."""
        raise_if_no_layer(layers, self.num_layers, self.spec.name)
        grid, merge = self.layout.grid(*frames.pixels.shape[1:3]), self.layout.merge

        def look(groups: Tensor) -> dict[str, Tensor]:
            notes = LayerNotes(layers, lambda hidden: patches_by_row(hidden, grid, merge))
            output = self._run(groups, grid, notes)
            attention = received_by_patches(output.last_block).reshape(-1, 1)
            return notes.maps(patches_by_row(attention, grid, merge).squeeze(-1))

        maps, _ = self._in_batches(frames, grid, look)
        return trace_of(maps, (grid[0] * merge, grid[1] * merge))

    def _in_batches(
        self,
        frames: VideoFrames,
        grid: tuple[int, int],
        look: Callable[[Tensor], dict[str, Tensor]],
    ) -> tuple[dict[str, Any], Tensor]:
        """Maps of all temporal positions of a clip, and their times."""
        pairs = pair_frames(frames.pixels, self.layout.frames)
        times = mean_timestamps(frames.timestamps, self.layout.frames)
        groups, timestamps = upload_clip(pairs, times, self.device)
        row_bytes = self.frame_bytes(*frames.pixels.shape[1:3]) * self.layout.frames
        maps = self._batches.run(
            groups, look, row_bytes=row_bytes, frames_per_row=self.layout.frames
        )
        return maps, timestamps

    def _encode_batch(
        self, groups: Tensor, grid: tuple[int, int], needs: frozenset[str]
    ) -> dict[str, Tensor]:
        """Tokens, companions and signals of some temporal positions, (t, frames, h, w, 3) uint8."""
        output = self._run(groups, grid)
        signals = {name: _SIGNALS[name](output) for name in needs}
        return {"tokens": output.tokens, "companions": output.companions, **signals}

    def _run(self, groups: Tensor, grid: tuple[int, int], *observe: Observer) -> Qwen3TowerOutput:
        """The tower, from (t, frames, h, w, 3) uint8; see `run_qwen3_tower`."""
        patches, places = self._patches(groups), self._places(grid)
        return run_qwen3_tower(self.tower, patches, places, *observe, halves=self._halves)

    def _patches(self, groups: Tensor) -> Tensor:
        """Normalised patches, see `to_patches`."""
        return to_patches(groups, self.layout, self._scale, self._mean, self._std)

    def _find_places(self, grid: tuple[int, int]) -> PatchPlaces:
        """Positions of the patches of a grid."""
        like = torch.empty(0, dtype=self._dtype, device=self.device)
        return plan_places(self.tower, grid, like)
