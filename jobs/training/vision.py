"""The vision tower while it is trained: linear heads on patches and frames, initial weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import SiglipVisionConfig, SiglipVisionModel

from jobs.training.frames import HEADS, NUM_PATCHES, PHRASES, SIDE, Batch

# Loss weight of the class "nothing": most patches show background, and would dominate the loss.
_NOTHING_WEIGHT = 0.12
_NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
# Scale of the initial queries and keys of every block.
_SCALES = (0.8, 1.2, 1.2)


class VisionTrainer(nn.Module):
    """A tower with linear heads that only training needs.

    Args:
        config: Of the tower, which has a pooling head.
    """

    places: Tensor

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.tower: Any = SiglipVisionModel._from_config(config, attn_implementation="sdpa")
        self.read_patch = nn.Linear(config.hidden_size, sum(HEADS.values()))
        self.read_frame = nn.Linear(config.hidden_size, PHRASES)
        initialise(self.tower)
        self.register_buffer("places", grid_places())

    def forward(self, pixels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Outputs by head (B, N, outputs) and of frames (B, PHRASES), from (B, H, W, 3) uint8."""
        out = self.tower(pixel_values=normalise(pixels))
        patches = self.read_patch(out.last_hidden_state)
        parts = torch.split(patches, list(HEADS.values()), dim=-1)
        return dict(zip(HEADS, parts, strict=True)), self.read_frame(out.pooler_output)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Sum of the losses of all heads; losses and accuracies on patches of objects by head."""
        patches, frame = self(batch["pixels"])
        losses = {}
        for name in ("kind", "color", "digit"):
            weight = torch.ones(HEADS[name])
            weight[0] = _NOTHING_WEIGHT
            losses[name] = F.cross_entropy(
                patches[name].flatten(0, 1), batch[name].flatten(), weight=weight
            )
        losses["count"] = 0.5 * F.cross_entropy(
            patches["count"].flatten(0, 1), batch["count"].flatten()
        )
        scene = batch["scene"][:, None].expand(-1, NUM_PATCHES)
        losses["scene"] = 0.3 * F.cross_entropy(patches["scene"].flatten(0, 1), scene.flatten())
        losses["place"] = 0.5 * (patches["place"] - self.places).square().mean()
        losses["frame"] = 4 * F.binary_cross_entropy_with_logits(
            frame, batch["phrases"], pos_weight=torch.tensor(4.0)
        )
        metrics = {f"loss/{name}": float(value.detach()) for name, value in losses.items()}
        for name in ("kind", "color", "digit", "count"):
            labelled = batch[name] > (-1 if name == "count" else 0)
            hits = patches[name].argmax(-1)[labelled] == batch[name][labelled]
            metrics[f"accuracy/{name}"] = float(hits.float().mean()) if len(hits) else float("nan")
        metrics["accuracy/scene"] = float((patches["scene"].argmax(-1) == scene).float().mean())
        return torch.stack(list(losses.values())).sum(), metrics


def normalise(pixels: Tensor) -> Tensor:
    """(B, H, W, 3) uint8 to (B, 3, H, W) float32 in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def grid_places() -> Tensor:
    """(N, 2) row and column of every patch, from -1 to 1."""
    line = (2 * torch.arange(SIDE) + 1) / SIDE - 1
    return torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).reshape(-1, 2)


@torch.no_grad()
def initialise(tower: Any) -> None:
    """Initialise positions as sines and cosines, and heads that attend to neighbouring patches.

    Every head of the first block attends to another neighbour, those of the second block to patches
    twice as far away. Half of the last block's heads attend to neighbours; the others are random.
    """
    config = tower.config
    size = config.hidden_size // config.num_attention_heads
    frequencies = torch.tensor([1.5, 1.0, 0.6, 0.3])
    line = torch.arange(SIDE)[:, None] * frequencies
    waves = torch.cat([line.sin(), line.cos()], dim=1)
    rows = waves[:, None].expand(SIDE, SIDE, -1)
    columns = waves[None].expand(SIDE, SIDE, -1)
    places = torch.cat([rows, columns], dim=-1).reshape(SIDE * SIDE, -1)
    table = tower.embeddings.position_embedding.weight
    table.normal_(0, 0.02)
    table[:, : places.shape[1]] += 1.5 * places
    # At first nothing else writes into the entries of the positions. Normalisation subtracts the
    # mean of a patch from all entries: one more entry stays zero, and the heads subtract it again.
    zero = places.shape[1]
    kept = zero + 1
    table[:, zero] = 0
    tower.embeddings.patch_embedding.weight.mul_(0.5)
    tower.embeddings.patch_embedding.weight[:kept] = 0
    tower.embeddings.patch_embedding.bias[:kept] = 0
    for block in tower.encoder.layers:
        block.self_attn.out_proj.weight[:kept] = 0
        block.mlp.fc2.weight[:kept] = 0
    for layer, (reach, local) in enumerate(((1, 8), (2, 8), (1, 4))):
        attention = tower.encoder.layers[layer].self_attn
        for head in range(local):
            here = slice(head * size, (head + 1) * size)
            down, right = _NEIGHBOURS[head]
            shift = torch.block_diag(  # type: ignore[no-untyped-call]
                _rotation(reach * down * frequencies), _rotation(reach * right * frequencies)
            )
            for projection, matrix in (
                (attention.q_proj, shift),
                (attention.k_proj, torch.eye(16)),
            ):
                projection.weight[here] = 0
                projection.weight[here, :zero] = _SCALES[layer] * matrix
                projection.weight[here, zero] = -_SCALES[layer] * matrix.sum(dim=1)
                projection.bias[here] = 0


def _rotation(angles: Tensor) -> Tensor:
    """(8, 8) matrix that adds the given angles to those of sines and cosines."""
    sine, cosine = torch.diag(angles.sin()), torch.diag(angles.cos())
    return torch.cat([torch.cat([cosine, sine], dim=1), torch.cat([-sine, cosine], dim=1)])
