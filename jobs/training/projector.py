"""Start the projector where its tokens already say what is in them, by least squares."""

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

_GAIN = {"kind": 0.3, "color": 0.3, "digit": 0.3, "count": 0.3, "scene": 0.3, "place": 2.0}
_RIDGE = 1e-3


def pooled(values: Tensor) -> Tensor:
    """Shrink (F, N, C) patches to (F, TOKENS, C) tokens as the model does."""
    return pool_grid(values, (SIDE, SIDE), "bilinear")


@torch.no_grad()
def patch_states(trainer: VisionTrainer, pixels: Tensor) -> Tensor:
    """What the projector sees, (F, N, D): the tower before its last normalisation."""
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

    The first layer repeats the tower's read-outs (each class against "nothing", places in both
    directions), the rest of it is random; the second layer is a ridge regression.

    Args:
        config: Of the whole model.
        trainer: A trained tower with its read-outs.
        states: (F, N, D) from `patch_states`.
        targets: (F, TOKENS, D) what the tokens should be.

    Returns:
        The projector, and the share of the targets' variance that it explains.
    """
    projector = LlavaOnevisionMultiModalProjector(config)
    rows, biases = _directions(trainer, states)
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
    rest = (wanted - design @ solution).square().sum()
    explained = 1 - rest / (wanted - wanted.mean(dim=0)).square().sum()
    return projector, float(explained)


def _directions(trainer: VisionTrainer, states: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and biases of the read-outs, folded through the tower's last normalisation.

    A normalisation divides by a length that differs from patch to patch; its mean stands for it.
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
        rows.append(_GAIN[name] * part)
        biases.append(_GAIN[name] * offset)
    row, shift = torch.cat(rows), torch.cat(biases)
    folded = row * norm.weight * scale
    folded = folded - folded.mean(dim=1, keepdim=True)
    return folded, shift + row @ norm.bias
