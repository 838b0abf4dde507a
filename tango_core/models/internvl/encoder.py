"""The vision half of InternVL: stock tower, pixel shuffle and projector, one tile per frame."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import InternVLConfig, InternVLVisionModel
from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

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
from tango_core.models.internvl.checkpoint import (
    merge_of,
    read_imagenet_normalisation,
    read_internvl_config,
    read_internvl_extras,
    tower_grid,
    vision_half,
)
from tango_core.models.internvl.tower import (
    InternTowerOutput,
    activation_bytes,
    cls_saliency,
    mean_patch_keys,
    pixel_shuffle,
    received_by_patches,
    received_patch_attention,
    run_intern_tower,
)
from tango_core.models.placement import resolve_device
from tango_core.models.sinks import sinks_on
from tango_core.models.trace import LayerNotes, TowerTrace, raise_if_no_layer, trace_of
from tango_core.models.upload import upload_clip
from tango_core.types import VideoFrames, VisualFeatures

_SIGNALS: dict[str, Callable[[InternTowerOutput], Tensor]] = {
    "attention": received_patch_attention,
    "frame_embeddings": lambda output: output.cls.float(),
    "keys": mean_patch_keys,
    "saliency": cls_saliency,
}


class InternVLVisionHalf(nn.Module):
    """Tower and projector, named as in the checkpoint."""

    def __init__(self, config: InternVLConfig) -> None:
        super().__init__()
        self.vision_tower = InternVLVisionModel._from_config(
            config.vision_config, attn_implementation="sdpa"
        )
        self.multi_modal_projector = InternVLMultiModalProjector(config)


class InternVLEncoder(VisionEncoder):
    """Tower, pixel shuffle and projector of InternVL; a frame is one tile.

    Args:
        spec: From `describe_model`.

    Raises:
        FileNotFoundError: If weights are missing.
        ValueError: If weights and configuration do not fit.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.device = resolve_device(spec.device)
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        self.config = read_internvl_config(checkpoint)
        self.model = load_module(
            lambda: InternVLVisionHalf(self.config),
            checkpoint,
            vision_half,
            dtype=self._dtype,
            device=self.device,
        )
        if can_compile(spec.compile, self.device):
            compile_blocks(self.model.vision_tower.encoder.layer)
        self._batches = FrameBatches(spec.encode_batch, self.device)
        normalisation = read_imagenet_normalisation(checkpoint)
        self._normalise = NormalisedPixels(normalisation, self.device, self._dtype)
        self._patches, self._merge = tower_grid(self.config), merge_of(self.config)
        self._own_sinks = read_internvl_extras(checkpoint).sinks

    @torch.no_grad()
    def encode(self, frames: VideoFrames, needs: frozenset[str] = frozenset()) -> VisualFeatures:
        """Encode one clip; see `VisionEncoder.encode`."""
        return self._encode(frames, needs, tokens=True)

    @torch.no_grad()
    def encode_signals(self, frames: VideoFrames, needs: frozenset[str]) -> VisualFeatures:
        """Without shuffle and projector; see `VisionEncoder.encode_signals`."""
        return self._encode(frames, needs, tokens=False)

    def frame_bytes(self, height: int, width: int) -> int:
        """Of one frame; see `VisionEncoder.frame_bytes`."""
        return activation_bytes(self.config.vision_config, self._dtype.itemsize)

    @property
    def num_layers(self) -> int:
        """Blocks of the tower."""
        return len(self.model.vision_tower.encoder.layer)

    @torch.no_grad()
    def trace(self, frames: VideoFrames, layers: Collection[int]) -> TowerTrace:
        """What the tower's layers hold of a clip, without CLS; see `VisionEncoder.trace`."""
        raise_if_wrong_size(self.spec, frames)
        raise_if_no_layer(layers, self.num_layers, self.spec.name)
        tower = self.model.vision_tower

        def look(pixels: Tensor) -> dict[str, Tensor]:
            notes = LayerNotes(layers, lambda hidden: hidden[:, 1:])
            pixels = self._normalise(pixels)
            output = run_intern_tower(tower, pixels, self._patches, self._merge, notes)
            return notes.maps(received_by_patches(output))

        maps, _ = self._in_batches(frames, look)
        return trace_of(maps, self._patches)

    def _in_batches(
        self, frames: VideoFrames, look: Callable[[Tensor], dict[str, Tensor]]
    ) -> tuple[dict[str, Any], Tensor]:
        """Maps of all frames of a clip, and their times."""
        pixels, timestamps = upload_clip(frames.pixels, frames.timestamps, self.device)
        row_bytes = self.frame_bytes(*frames.pixels.shape[1:3])
        return self._batches.run(pixels, look, row_bytes=row_bytes), timestamps

    def _encode(self, frames: VideoFrames, needs: frozenset[str], tokens: bool) -> VisualFeatures:
        """Signals and, if asked for, tokens; else those have no width."""
        raise_if_wrong_size(self.spec, frames)
        raise_if_not_provided(self.spec, needs)
        assert self.spec.grid is not None
        maps, timestamps = self._in_batches(
            frames, lambda part: self._encode_batch(part, needs, tokens)
        )
        return VisualFeatures(
            grid=self.spec.grid,
            timestamps=timestamps,
            sinks=sinks_on(self.spec.grid, self.spec.name, self.spec.sinks, self._own_sinks),
            source=frames.source,
            **maps,
        )

    def _encode_batch(
        self, pixels: Tensor, needs: frozenset[str], tokens: bool
    ) -> dict[str, Tensor]:
        """Tokens and signals of some frames, (f, h, w, 3) uint8 on the device."""
        tower = self.model.vision_tower
        output = run_intern_tower(tower, self._normalise(pixels), self._patches, self._merge)
        maps = {name: _SIGNALS[name](output) for name in sorted(needs)}
        if tokens:
            maps["tokens"] = self.model.multi_modal_projector(pixel_shuffle(output))
        else:
            num_tokens = output.patches.shape[1] // self._merge**2
            maps["tokens"] = output.patches.new_empty(len(pixels), num_tokens, 0)
        return maps
