"""The vision half of LLaVA-OneVision and LLaVA-Video: SigLIP, two-layer projector, pooling."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from tango_core.models.base import (
    ModelSpec,
    VisionEncoder,
    raise_if_not_provided,
    raise_if_wrong_size,
)
from tango_core.models.checkpoints.directory import resolve_checkpoint
from tango_core.models.checkpoints.normalisation import NormalisedPixels
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.compiling import can_compile, compile_blocks
from tango_core.models.frame_batches import FrameBatches
from tango_core.models.llava.checkpoint import (
    VISION,
    half_of,
    read_config,
    read_llava_extras,
    read_siglip_normalisation,
)
from tango_core.models.llava.options import PUBLISHED_STEP, options_of
from tango_core.models.llava.siglip import (
    TowerOutput,
    activation_bytes,
    load_pooling_head,
    mean_keys,
    received_attention,
    run_tower,
    selected_states,
)
from tango_core.models.placement import resolve_device
from tango_core.models.sinks import PUBLISHED_SINKS, sinks_on
from tango_core.models.trace import LayerNotes, TowerTrace, raise_if_no_layer, trace_of
from tango_core.models.upload import upload_clip
from tango_core.ops.saliency import pool_grid, pooled_grid
from tango_core.types import VideoFrames, VisualFeatures


class VisionHalf(nn.Module):
    """Tower and projector, named as in the checkpoint."""

    def __init__(self, config: LlavaOnevisionConfig) -> None:
        super().__init__()
        self.vision_tower = AutoModel.from_config(config.vision_config, attn_implementation="sdpa")
        self.multi_modal_projector = LlavaOnevisionMultiModalProjector(config)


class LlavaEncoder(VisionEncoder):
    """Tower, projector and pooling of a LLaVA model; signals are pooled like the tokens.

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
        self.config = read_config(checkpoint)
        self.model = load_module(
            lambda: VisionHalf(self.config),
            checkpoint,
            half_of(VISION),
            dtype=getattr(torch, spec.dtype),
            device=self.device,
        )
        if can_compile(spec.compile, self.device):
            compile_blocks(self.model.vision_tower.encoder.layers)
        self.pooling_head = load_pooling_head(
            checkpoint, self.config.vision_config, spec.saliency_from, self.device
        )
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._batches = FrameBatches(spec.encode_batch, self.device)
        normalisation = read_siglip_normalisation(checkpoint)
        self._normalise = NormalisedPixels(normalisation, self.device, self._dtype)
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        self._tower_grid = (side, side)
        self._options = options_of(spec)
        how, step = self._options.pooling, self._options.pooling_step
        self._grid = pooled_grid(self._tower_grid, how, step)
        # A checkpoint's own sinks are places on the grid that it was published with.
        published = step == PUBLISHED_STEP
        self._own_sinks = read_llava_extras(checkpoint).sinks if published else None

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        return self._encode(frames, needs, tokens=True)

    @torch.no_grad()
    def encode_signals(self, frames: VideoFrames, needs: frozenset[str]) -> VisualFeatures:
        """Without projector and pooling of the tokens; see `VisionEncoder.encode_signals`."""
        return self._encode(frames, needs, tokens=False)

    def frame_bytes(self, height: int, width: int) -> int:
        """Of one frame; see `VisionEncoder.frame_bytes`."""
        return activation_bytes(self.config.vision_config, self._dtype.itemsize)

    @property
    def num_layers(self) -> int:
        """Blocks up to the one whose output the model takes."""
        number = self.config.vision_config.num_hidden_layers
        return max(selected_states(self.config.vision_feature_layer, number))

    @torch.no_grad()
    def trace(self, frames: VideoFrames, layers: Collection[int]) -> TowerTrace:
        """What the tower's layers hold of a clip; see `VisionEncoder.trace`."""
        raise_if_wrong_size(self.spec, frames)
        raise_if_no_layer(layers, self.num_layers, self.spec.name)

        def look(pixels: Tensor) -> dict[str, Tensor]:
            notes = LayerNotes(layers)
            feature_layer = self.config.vision_feature_layer
            pixels = self._normalise(pixels)
            output = run_tower(self.model.vision_tower, pixels, feature_layer, notes)
            return notes.maps(received_attention(output))

        pixels, _ = upload_clip(frames.pixels, frames.timestamps, self.device)
        row_bytes = self.frame_bytes(*frames.pixels.shape[1:3])
        return trace_of(self._batches.run(pixels, look, row_bytes=row_bytes), self._tower_grid)

    def _encode(self, frames: VideoFrames, needs: frozenset[str], tokens: bool) -> VisualFeatures:
        """Signals and, if asked for, tokens; else those have no width."""
        raise_if_wrong_size(self.spec, frames)
        raise_if_not_provided(self.spec, needs)
        pixels, timestamps = upload_clip(frames.pixels, frames.timestamps, self.device)
        maps: dict[str, Any] = self._batches.run(
            pixels,
            lambda part: self._encode_batch(part, needs, tokens),
            row_bytes=self.frame_bytes(*frames.pixels.shape[1:3]),
        )
        return VisualFeatures(
            grid=self._grid,
            timestamps=timestamps,
            sinks=self._sinks_on(self._grid),
            source=frames.source,
            **maps,
        )

    def _encode_batch(
        self, pixels: Tensor, needs: frozenset[str], tokens: bool
    ) -> dict[str, Tensor]:
        """Tokens and signals of some frames, (f, h, w, 3) uint8 on the device."""
        output = run_tower(
            self.model.vision_tower, self._normalise(pixels), self.config.vision_feature_layer
        )
        if tokens:
            maps = {"tokens": self._pool(self.model.multi_modal_projector(output.features))}
        else:
            height, width = self._grid
            maps = {"tokens": output.features.new_empty(len(pixels), height * width, 0)}
        signals: dict[str, Callable[[TowerOutput], Tensor]] = {
            "attention": lambda out: self._pool(received_attention(out)),
            "keys": lambda out: self._pool(mean_keys(out)),
        }
        if self.pooling_head is not None:
            head = self.pooling_head
            signals["saliency"] = lambda out: self._pool(head.saliency(out.hidden))
            signals["frame_embeddings"] = lambda out: head.embed(out.hidden)
        for name in sorted(needs):
            maps[name] = signals[name](output)
        return maps

    def _pool(self, maps: Tensor) -> Tensor:
        """Shrink (f, N) or (f, N, C) maps of the tower's grid to the grid of the language model."""
        how, step = self._options.pooling, self._options.pooling_step
        return pool_grid(maps, self._tower_grid, how, step)

    def _sinks_on(self, grid: tuple[int, int]) -> tuple[int, ...]:
        """Sinks of frames with this grid."""
        return sinks_on(grid, self.spec.name, self.spec.sinks, self._own_sinks, PUBLISHED_SINKS)
