"""The vision half of LLaVA-OneVision and LLaVA-Video: SigLIP, two-layer projector, pooling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from tango_core.models.base import ModelSpec, raise_if_not_provided
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.files import FamilyFiles
from tango_core.models.llava.family import PUBLISHED_STEP, LlavaOptions
from tango_core.models.llava.files import BLOCK_SIGNALS, SHALLOW_BLOCK, selected_states
from tango_core.models.llava.siglip import (
    load_pooling_head,
    run_tower,
)
from tango_core.models.sinks import PUBLISHED_SINKS
from tango_core.models.towers.encoder import FrameEncoder, FrameTowerOutput, Grid
from tango_core.models.towers.frame_batches import upload_clip
from tango_core.models.towers.frame_merging import MergedFrames, merge_frames
from tango_core.models.towers.trace import Observer
from tango_core.ops.saliency import pool_grid
from tango_core.types import VideoFrames, VisualFeatures


class VisionHalf(nn.Module):
    """Tower and projector, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="sdpa")
        self.multi_modal_projector = LlavaOnevisionMultiModalProjector(config)


class Encoder(FrameEncoder):
    """Tower, projector and pooling of a LLaVA model; signals are pooled like the tokens."""

    published_sinks = PUBLISHED_SINKS

    def __init__(self, spec: ModelSpec, files: FamilyFiles) -> None:
        assert isinstance(spec.options, LlavaOptions)
        self._options = spec.options
        super().__init__(spec, files)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        vision = self.config.vision_config
        self.pooling_head = load_pooling_head(checkpoint, vision, spec.saliency_from, self.device)

    def build(self) -> nn.Module:
        """Tower and projector."""
        return VisionHalf(self.config)

    def own_sinks(self, files: FamilyFiles, checkpoint: Checkpoint) -> tuple[int, ...] | None:
        """Sinks of the checkpoint, if it is used with the grid that they are defined for."""
        published = self._options.pooling_step == PUBLISHED_STEP
        return super().own_sinks(files, checkpoint) if published else None

    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""
        return self.model.vision_tower.encoder.layers  # type: ignore[no-any-return]

    def projectors(self, grid: Grid) -> tuple[Sequence[nn.Module], int]:
        """The projector, which is in front of the pooling."""
        return [self.model.multi_modal_projector], math.prod(self.patch_grid(grid))

    @property
    def num_layers(self) -> int:
        """Number of blocks up to the one whose output the model uses."""
        number = self.config.vision_config.num_hidden_layers
        return max(selected_states(self.config.vision_feature_layer, number))

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return side, side

    def run(
        self,
        pixels: Tensor,
        *observe: Observer,
        needs: frozenset[str] = frozenset(),
        start: int = 0,
    ) -> FrameTowerOutput:
        """See `run_tower`."""
        tower, layer = self.model.vision_tower, self.config.vision_feature_layer
        earlier = [self._block_of(name) for name in needs & BLOCK_SIGNALS]
        return run_tower(tower, pixels, layer, *observe, earlier=earlier, start=start)

    def _features(self, frames: VideoFrames, needs: frozenset[str], tokens: bool) -> VisualFeatures:
        """See `TowerEncoder`; frames are merged behind the blocks that the options name."""
        if not self._options.merging_blocks:
            return super()._features(frames, needs, tokens)
        raise_if_not_provided(self.spec, needs)
        grid = self.grid_of(frames)
        rows, timestamps = upload_clip(*self.rows_of(frames), self.device)
        row_bytes = self.frame_bytes(*frames.pixels.shape[1:3])
        merged = MergedFrames(rows, rows.new_zeros(len(rows), 0), torch.arange(len(rows)))
        start, rows_per_block = 0, []
        for index in self._options.merging_blocks:
            look = partial(self._through, start, index)
            found = self._batches.run(merged.states, look, row_bytes=row_bytes)
            rows_per_block += [len(found["states"])] * (index + 1 - start)
            merged = MergedFrames(found["states"], found["attention"], merged.sources)
            merged, groups = merge_frames(merged, **self._options.merging)
            start = index + 1
        rows_per_block += [len(merged.states)] * (self.num_layers - start)
        later = needs - {"merged_attention"}

        def maps_of(states: Tensor) -> dict[str, Any]:
            output = self.run(states, needs=later, start=start)
            return self.maps_of(output, (len(states), math.prod(grid)), later, tokens)

        maps: dict[str, Any] = self._batches.run(merged.states, maps_of, row_bytes=row_bytes)
        if "merged_attention" in needs:
            maps["merged_attention"] = self._pool(merged.attention)
        return VisualFeatures(
            grid=grid,
            timestamps=timestamps[merged.sources.to(timestamps.device)],
            sinks=self._sinks_on(grid),
            source=frames.source,
            frame_map=torch.stack([merged.sources, groups], dim=1),
            source_timestamps=timestamps,
            encoder_flops=self.flops(grid, rows_per_block),
            **maps,
        )

    def _through(self, start: int, last: int, rows: Tensor) -> dict[str, Tensor]:
        """States behind block `last`, and the attention received in it."""
        tower = self.model.vision_tower
        states = rows if start else tower.embeddings(self._normalise(rows))
        for block in tower.encoder.layers[start:last]:
            states = block(states, attention_mask=None)
        block = tower.encoder.layers[last]
        return {
            "attention": self._received_in(last, states),
            "states": block(states, attention_mask=None),
        }

    def _received_in(self, index: int, states: Tensor) -> Tensor:
        """(F, N) float32 attention that tokens receive in a block with this input."""
        block = self.model.vision_tower.encoder.layers[index]
        output = FrameTowerOutput(states, states, states, block.self_attn, block.layer_norm1)
        return output.received()

    def _block_of(self, signal: str) -> int:
        """Index of the block that a signal of `BLOCK_SIGNALS` is taken from."""
        return SHALLOW_BLOCK if signal == "shallow_attention" else self.num_layers - 2

    def signal(self, name: str, output: FrameTowerOutput) -> Tensor:
        """See `FrameEncoder.signal`."""
        if name == "attention":
            return self._pool(output.received())
        if name in BLOCK_SIGNALS:
            index = self._block_of(name)
            return self._received_in(index, output.earlier[index])
        if name == "keys":
            return self._pool(output.mean_keys())
        if name == "tower_tokens":
            return self._pool(output.features)
        if name == "unpooled_tokens":
            return self.model.multi_modal_projector(output.features)  # type: ignore[no-any-return]
        assert self.pooling_head is not None
        if name == "saliency":
            return self._pool(self.pooling_head.saliency(output.hidden))
        return self.pooling_head.embed(output.hidden)

    def project(self, output: FrameTowerOutput) -> Tensor:
        """Projector and pooling."""
        return self._pool(self.model.multi_modal_projector(output.features))

    def _pool(self, maps: Tensor) -> Tensor:
        """Shrink (f, N) or (f, N, C) maps of the tower's grid to the grid of the language model."""
        how, step = self._options.pooling, self._options.pooling_step
        return pool_grid(maps, self.patch_grid((0, 0)), how, step)
