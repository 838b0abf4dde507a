"""The vision half of Qwen2.5-VL: stock tower with its patch merger, frames taken in pairs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)

from tango_core.models.base import ModelSpec, VisionEncoder, raise_if_not_provided
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.frame_batches import FrameBatches
from tango_core.models.patch_blocks import block_halves
from tango_core.models.patch_signals import received_by_patches
from tango_core.models.patches import pair_frames, pair_timestamps, to_patches
from tango_core.models.placement import resolve_device
from tango_core.models.qwen2_5_vl.checkpoint import (
    read_clip_normalisation,
    read_patch_layout,
    read_qwen_config,
    read_qwen_extras,
    vision_half,
)
from tango_core.models.qwen2_5_vl.tower import (
    QwenTowerOutput,
    activation_bytes,
    mean_patch_keys,
    mean_query_saliency,
    patches_in_raster_order,
    received_patch_attention,
    run_qwen_tower,
)
from tango_core.models.qwen2_5_vl.windows import WindowPlan, plan_windows
from tango_core.models.sinks import sinks_on
from tango_core.models.trace import LayerNotes, Observer, TowerTrace, raise_if_no_layer, trace_of
from tango_core.models.upload import upload_clip
from tango_core.types import VideoFrames, VisualFeatures

# Shapes of clips whose windows are remembered: all of a benchmark's have a few.
_SHAPES = 8

_SIGNALS: dict[str, Callable[[QwenTowerOutput], Tensor]] = {
    "attention": received_patch_attention,
    "frame_embeddings": lambda output: output.tokens.float().mean(dim=1),
    "keys": mean_patch_keys,
    "saliency": mean_query_saliency,
}


class QwenEncoder(VisionEncoder):
    """Tower and patch merger of Qwen2.5-VL.

    T is the number of frame pairs, an odd last frame being repeated; the grid is that of the merged
    tokens and follows the shape of the clip. `timestamps` are interpolated, see `pair_timestamps`.

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
        config = read_qwen_config(checkpoint)
        self.tower: Qwen2_5_VisionTransformerPretrainedModel = load_module(
            lambda: Qwen2_5_VisionTransformerPretrainedModel._from_config(
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
        self._plan = lru_cache(maxsize=_SHAPES)(self._find_windows)
        normalisation = read_clip_normalisation(checkpoint)
        self._scale = normalisation.scale
        self._mean, self._std = normalisation.on(self.device)
        self._own_sinks = read_qwen_extras(checkpoint).sinks

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        raise_if_not_provided(self.spec, needs)
        grid = self.layout.grid(*frames.pixels.shape[1:3])
        pairs = pair_frames(frames.pixels, self.layout.frames)
        times = pair_timestamps(frames.timestamps, len(pairs))
        groups, timestamps = upload_clip(pairs, times, self.device)
        maps: dict[str, Any] = self._batches.run(
            groups,
            lambda part: self._encode_batch(part, grid, needs),
            row_bytes=self.frame_bytes(*frames.pixels.shape[1:3]) * self.layout.frames,
            frames_per_row=self.layout.frames,
        )
        return VisualFeatures(
            grid=grid,
            timestamps=timestamps,
            sinks=sinks_on(grid, self.spec.name, self.spec.sinks, self._own_sinks),
            source=frames.source,
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
        grid = self.layout.grid(*frames.pixels.shape[1:3])
        merge = self.layout.merge

        def look(groups: Tensor) -> dict[str, Tensor]:
            plan = self._plan(len(groups), grid)
            notes = LayerNotes(layers, lambda out: patches_in_raster_order(out, plan, grid))
            output = self._run(groups, plan, notes)
            attention = received_by_patches(output.last_block).reshape(-1, 1)
            return notes.maps(patches_in_raster_order(attention, plan, grid).squeeze(-1))

        pairs = pair_frames(frames.pixels, self.layout.frames)
        times = pair_timestamps(frames.timestamps, len(pairs))
        groups, _ = upload_clip(pairs, times, self.device)
        maps = self._batches.run(
            groups,
            look,
            row_bytes=self.frame_bytes(*frames.pixels.shape[1:3]) * self.layout.frames,
            frames_per_row=self.layout.frames,
        )
        return trace_of(maps, (grid[0] * merge, grid[1] * merge))

    def _encode_batch(
        self, groups: Tensor, grid: tuple[int, int], needs: frozenset[str]
    ) -> dict[str, Tensor]:
        """Tokens and signals of some temporal positions, (t, frames, h, w, 3) uint8."""
        output = self._run(groups, self._plan(len(groups), grid))
        return {"tokens": output.tokens, **{name: _SIGNALS[name](output) for name in needs}}

    def _run(self, groups: Tensor, plan: WindowPlan, *observe: Observer) -> QwenTowerOutput:
        """The tower, from (t, frames, h, w, 3) uint8; see `run_qwen_tower`."""
        patches = self._patches(groups)
        return run_qwen_tower(self.tower, patches, plan, *observe, halves=self._halves)

    def _patches(self, groups: Tensor) -> Tensor:
        """Normalised patches, see `to_patches`."""
        return to_patches(groups, self.layout, self._scale, self._mean, self._std)

    def _find_windows(self, num_positions: int, grid: tuple[int, int]) -> WindowPlan:
        """Windows of the clips of a shape."""
        like = torch.empty(0, dtype=self._dtype, device=self.device)
        return plan_windows(self.tower, num_positions, grid, like)
