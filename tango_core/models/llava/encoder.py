"""Vision encoder of LLaVA-OneVision and LLaVA-Video: SigLIP, two-layer projector, pooling.

The modules of transformers are called block by block. This gives access to the last block's input,
so its attention weights can be computed separately, and all blocks keep the fused kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlavaOnevisionConfig, SiglipVisionConfig, SiglipVisionModel
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from tango_core.errors import InputError
from tango_core.models.base import ModelSpec
from tango_core.models.checkpoints.directory import Checkpoint, resolve_checkpoint
from tango_core.models.checkpoints.weights import load_module
from tango_core.models.family import CheckpointFamily
from tango_core.models.llava.family import (
    BLOCK_SIGNALS,
    PUBLISHED_STEP,
    SHALLOW_BLOCK,
    SIGLIP_OF_LLAVA,
    LlavaOptions,
    siglip_config,
    used_blocks,
)
from tango_core.models.options import PUBLISHED_SINKS
from tango_core.models.towers.encoder import FrameEncoder, FrameTowerOutput, Grid, upload_clip
from tango_core.models.towers.frame_merging import MergedFrames, merge_frames
from tango_core.models.towers.trace import Observer, unobserved
from tango_core.ops.saliency import pool_grid, pooling_head_attention
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

    def __init__(self, spec: ModelSpec, family: CheckpointFamily) -> None:
        assert isinstance(spec.options, LlavaOptions)
        self._options = spec.options
        super().__init__(spec, family)
        checkpoint = resolve_checkpoint(spec.path, spec.revision)
        vision = self.config.vision_config
        if spec.options.pooling_step != PUBLISHED_STEP:
            self._own_sinks = None  # they are positions on the published grid
        self.pooling_head = load_pooling_head(checkpoint, vision, spec.saliency_from, self.device)

    def build(self) -> nn.Module:
        """Tower and projector."""
        return VisionHalf(self.config)

    def blocks(self) -> Iterable[nn.Module]:
        """Blocks of the tower."""
        return self.model.vision_tower.encoder.layers  # type: ignore[no-any-return]

    def projectors(self, grid: Grid) -> tuple[Sequence[nn.Module], int]:
        """The projector, which is in front of the pooling."""
        return [self.model.multi_modal_projector], math.prod(self.patch_grid(grid))

    @property
    def num_layers(self) -> int:
        """Number of blocks up to the one whose output the model uses."""
        return used_blocks(self.config)

    def patch_grid(self, grid: Grid) -> Grid:
        """See `TowerEncoder.patch_grid`."""
        side = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return side, side

    def run(
        self,
        pixels: Tensor,
        observe: Observer = unobserved,
        needs: frozenset[str] = frozenset(),
        start: int = 0,
    ) -> FrameTowerOutput:
        """See `run_tower`."""
        earlier = [self._block_of(name) for name in needs & BLOCK_SIGNALS]
        tower = self.model.vision_tower
        return run_tower(tower, pixels, self.num_layers, observe, earlier=earlier, start=start)

    def _features(self, frames: VideoFrames, needs: frozenset[str]) -> VisualFeatures:
        """See `TowerEncoder`; frames are merged behind the blocks that the options name."""
        if not self._options.merging_blocks:
            return super()._features(frames, needs)
        grid = self.grid_of(frames)
        rows, timestamps = upload_clip(*self.rows_of(frames), self.device)
        merged = MergedFrames(rows, rows.new_zeros(len(rows), 0), torch.arange(len(rows)))
        start, rows_per_block = 0, []
        for index in self._options.merging_blocks:
            look = partial(self._through, start, index)
            found = self._batches.run(merged.states, look)
            rows_per_block += [len(found["states"])] * (index + 1 - start)
            merged = MergedFrames(found["states"], found["attention"], merged.sources)
            merged, groups = merge_frames(merged, **self._options.merging)
            start = index + 1
        rows_per_block += [len(merged.states)] * (self.num_layers - start)
        later = needs - {"merged_attention"}

        def maps_of(states: Tensor) -> dict[str, Tensor]:
            return self.maps_of(self.run(states, needs=later, start=start), later)

        maps: dict[str, Any] = self._batches.run(merged.states, maps_of)
        if "merged_attention" in needs:
            maps["merged_attention"] = self._pool(merged.attention)
        return self._features_of(
            frames,
            grid,
            timestamps=timestamps[merged.sources.to(timestamps.device)],
            frame_map=torch.stack([merged.sources, groups], dim=1),
            source_timestamps=timestamps,
            encoder_flops=self.flops(grid, rows_per_block),
            **maps,
        )

    def _through(self, start: int, last: int, rows: Tensor) -> dict[str, Tensor]:
        """States behind block `last`, and the attention received in it."""
        inputs = rows if start else self._normalise(rows)
        output = run_tower(self.model.vision_tower, inputs, last + 1, start=start)
        return {"attention": output.received(), "states": output.hidden}

    def _block_of(self, signal: str) -> int:
        """Index of the block that a signal of `BLOCK_SIGNALS` is taken from."""
        return SHALLOW_BLOCK if signal == "shallow_attention" else self.num_layers - 2

    def signal(self, name: str, output: FrameTowerOutput) -> Tensor:
        """See `FrameEncoder.signal`."""
        if name == "attention":
            return self._pool(output.received())
        if name in BLOCK_SIGNALS:
            index = self._block_of(name)
            block = self.model.vision_tower.encoder.layers[index]
            states = output.earlier[index]
            norm, attention = block.layer_norm1, block.self_attn
            return FrameTowerOutput(states, states, states, attention, norm).received()
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
        options = self._options
        return pool_grid(maps, self.patch_grid((0, 0)), options.pooling, options.pooling_step)


def run_tower(
    tower: SiglipVisionModel,
    pixels: Tensor,
    num_blocks: int,
    observe: Observer = unobserved,
    *,
    earlier: Collection[int] = (),
    start: int = 0,
) -> FrameTowerOutput:
    """Run the first blocks of the tower.

    Args:
        tower: SigLIP vision model of transformers.
        pixels: (F, 3, h, w) normalised; with a `start`, (F, N, Dv) input of that block.
        num_blocks: Number of blocks, counted from the first one.
        observe: Called with every layer's output.
        earlier: Blocks whose input is returned.
        start: Index of the first block that is run.
    """
    hidden = pixels if start else tower.embeddings(pixels)
    observe(start, hidden)
    inputs = {}
    for index, block in enumerate(tower.encoder.layers[start:num_blocks], start=start):
        block_input = hidden
        if index in earlier:
            inputs[index] = hidden
        hidden = block(hidden, attention_mask=None)
        observe(index + 1, hidden)
    last: Any = block
    return FrameTowerOutput(hidden, hidden, block_input, last.self_attn, last.layer_norm1, inputs)


class PoolingHead(nn.Module):
    """SigLIP's attention pooling: one learned query, the probe, attends to all tokens of a frame.

    How much the probe attends to a token is the saliency "p-attn" of Tango and FastVID. LLaVA's
    towers lack the head, so it may be loaded from the original SigLIP checkpoint; like the
    official code it is then applied to the features of LLaVA's last block, which is one block
    earlier than where it was trained. All in float32.
    """

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.post_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = SiglipMultiheadAttentionPoolingHead(config)

    def saliency(self, hidden: Tensor) -> Tensor:
        """Attention of the probe, softmax over the frame's tokens per head, mean over heads.

        Args:
            hidden: (F, N, Dv) output of the last block run, any dtype.

        Returns:
            (F, N) float32; every row sums to 1.
        """
        attention, norm = self.head.attention, self.post_layernorm
        projection = attention.in_proj_weight, attention.in_proj_bias, attention.num_heads
        normed = norm.weight, norm.bias, norm.eps
        return pooling_head_attention(hidden, self.head.probe, *projection, *normed)

    def embed(self, hidden: Tensor) -> Tensor:
        """One vector per frame, the head's full output (FastVID's global feature).

        Args:
            hidden: (F, N, Dv) any dtype.

        Returns:
            (F, Dv) float32.
        """
        return self.head(self.post_layernorm(hidden.float()))  # type: ignore[no-any-return]


_HEAD_NAME = re.compile(
    r"(?:model\.)?(?:vision_tower\.)*(?:vision_model\.)?((?:head|post_layernorm)\..+)"
)


def load_pooling_head(
    own: Checkpoint, own_config: SiglipVisionConfig, saliency_from: str | None, device: torch.device
) -> PoolingHead | None:
    """Load the pooling head from a second checkpoint if one is named, else from the tower's own.

    Args:
        own: The LLaVA checkpoint.
        own_config: Its tower's configuration.
        saliency_from: Hub id or directory of a SigLIP checkpoint of the same width.
        device: Where to put the head.

    Returns:
        The head in float32, or `None` if the tower has none and no second checkpoint is named.

    Raises:
        FileNotFoundError: If `saliency_from` does not exist.
        ValueError: If its head does not fit.
    """
    checkpoint, config = own, own_config
    if saliency_from is None and not own_config.vision_use_head:
        return None
    if saliency_from is not None:
        checkpoint = resolve_checkpoint(saliency_from, setting="model.saliency_from")
        config = siglip_config(checkpoint)
        if config.hidden_size != own_config.hidden_size:
            raise InputError(
                f"model.saliency_from {saliency_from} has width {config.hidden_size}, but the "
                f"tower has {own_config.hidden_size}; give the SigLIP that the tower was made from "
                f"({SIGLIP_OF_LLAVA})"
            )

    def rename(name: str) -> str | None:
        match = _HEAD_NAME.fullmatch(name)
        return match[1] if match else None

    return load_module(
        lambda: PoolingHead(config), checkpoint, rename, dtype=torch.float32, device=device
    )
