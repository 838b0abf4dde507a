"""Initial weights of the projector: a least-squares fit to the wanted tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlavaOnevisionConfig
from transformers.models.llava_onevision.modeling_llava_onevision import (
    LlavaOnevisionMultiModalProjector,
)

from jobs.training.frames import HEADS, SIDE
from jobs.training.vision import VisionTrainer, normalise
from tango_core.ops.saliency import pool_grid

# Scales of the outputs that the first layer repeats.
_SCALES = {"kind": 0.3, "color": 0.3, "digit": 0.3, "count": 0.3, "scene": 0.3, "place": 2.0}
_RIDGE = 1e-3


def pooled(values: Tensor) -> Tensor:
    """Pool (F, N, C) patches to (F, TOKENS_PER_FRAME, C) tokens as the model does."""
    return pool_grid(values, (SIDE, SIDE), "bilinear")


@torch.no_grad()
def patch_states(trainer: VisionTrainer, pixels: Tensor) -> Tensor:
    """Input of the projector, (F, N, D): states of the tower before its last normalisation."""
    tower = trainer.tower
    hidden: Tensor = tower.embeddings(normalise(pixels))
    for block in tower.encoder.layers:
        hidden = block(hidden, attention_mask=None)
    return hidden


@torch.no_grad()
def fit_projector(
    config: LlavaOnevisionConfig, trainer: VisionTrainer, states: Tensor, targets: Tensor
) -> tuple[LlavaOnevisionMultiModalProjector, float]:
    """Build a projector whose pooled outputs are close to given tokens.

    The first layer repeats the tower's linear heads (each class minus "nothing", places in both
    signs); its remaining rows are random. The second layer is a ridge regression.

    Args:
        config: Of the whole model.
        trainer: A trained tower with its heads.
        states: (F, N, D) from `patch_states`.
        targets: (F, TOKENS_PER_FRAME, D) the wanted tokens.

    Returns:
        The projector, and the share of the targets' variance that it explains.
    """
    projector = LlavaOnevisionMultiModalProjector(config)
    rows, biases = _head_weights(trainer, states)
    width = projector.linear_1.weight.shape[0]
    rows, biases = rows[:width], biases[:width]
    centre = states.mean(dim=(0, 1))
    spread = states.flatten(0, 1).std(dim=0).norm()
    random = nn.init.orthogonal_(torch.empty(width - len(rows), rows.shape[1])) * 6 / spread
    projector.linear_1.weight.copy_(torch.cat([rows, random]))
    projector.linear_1.bias.copy_(torch.cat([biases, -random @ centre]))
    features = pooled(F.gelu(projector.linear_1(states))).flatten(0, 1)
    ones = torch.ones(len(features), 1)
    design = torch.cat([features, ones], dim=1).double()
    wanted = targets.flatten(0, 1).double()
    gram = design.T @ design / len(design)
    gram += _RIDGE * torch.diag(gram.diagonal())
    solution = torch.linalg.solve(gram, design.T @ wanted / len(design))
    projector.linear_2.weight.copy_(solution[:-1].T.float())
    projector.linear_2.bias.copy_(solution[-1].float())
    residual = (wanted - design @ solution).square().sum()
    explained = 1 - residual / (wanted - wanted.mean(dim=0)).square().sum()
    return projector, float(explained)


def _head_weights(trainer: VisionTrainer, states: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and biases of the heads, for states before the tower's last normalisation.

    The normalisation divides by a norm that differs between patches; its mean is used for all.
    """
    norm = trainer.tower.post_layernorm
    centred = states - states.mean(dim=-1, keepdim=True)
    scale = (centred.square().mean(dim=-1) + norm.eps).rsqrt().mean()
    weight, bias = trainer.read_patch.weight, trainer.read_patch.bias
    parts = torch.split(weight, list(HEADS.values()))
    offsets = torch.split(bias, list(HEADS.values()))
    rows, biases = [], []
    for name, part, offset in zip(HEADS, parts, offsets, strict=True):
        if name == "place":
            part, offset = torch.cat([part, -part]), torch.cat([offset, -offset])
        elif name in ("kind", "color", "digit"):
            part, offset = part[1:] - part[:1], offset[1:] - offset[:1]
        else:
            part, offset = part - part.mean(dim=0), offset - offset.mean()
        rows.append(_SCALES[name] * part)
        biases.append(_SCALES[name] * offset)
    row, shift = torch.cat(rows), torch.cat(biases)
    folded = row * norm.weight * scale
    folded = folded - folded.mean(dim=1, keepdim=True)
    return folded, shift + row @ norm.bias
