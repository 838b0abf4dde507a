"""The vision half of LLaVA-OneVision and LLaVA-Video: SigLIP, two-layer projector, pooling."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.files import FamilyFiles
from tango_core.models.llava.family import PUBLISHED_STEP, LlavaOptions
from tango_core.models.llava.siglip import (
    load_pooling_head,
    run_tower,
    selected_states,
)
from tango_core.models.sinks import PUBLISHED_SINKS
from tango_core.models.towers.encoder import FrameEncoder, FrameTowerOutput, Grid
from tango_core.models.towers.trace import Observer
from tango_core.ops.saliency import pool_grid


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

    @property
    def num_layers(self) -> int:
        """Number of blocks up to the one whose output the model uses."""
        number = self.config.vision_config.num_hidden_layers
        return max(selected_states(self.config.vision_feature_layer, number))

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return side, side

    def run(self, pixels: Tensor, *observe: Observer) -> FrameTowerOutput:
        """See `run_tower`."""
        tower = self.model.vision_tower
        return run_tower(tower, pixels, self.config.vision_feature_layer, *observe)

    def signal(self, name: str, output: FrameTowerOutput) -> Tensor:
        """See `FrameEncoder.signal`."""
        if name == "attention":
            return self._pool(output.received())
        if name == "keys":
            return self._pool(output.mean_keys())
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
