"""V-CAST and the controls, with PyTorch's own pooling where there is one."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.types import VisualFeatures


def vcast(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Budgets by how the path of frame means bends, then far and long tokens of every frame."""
    tokens = features.tokens.float()
    num_frames, num_cells, _ = tokens.shape
    means = F.normalize(tokens.mean(dim=1), dim=-1, eps=1e-6)
    bends = torch.ones(num_frames, device=tokens.device)
    steps = F.normalize(means.diff(dim=0), dim=-1, eps=1e-6)
    bends[1:-1] = 1 - (steps[1:] * steps[:-1]).sum(dim=-1)
    weights = torch.softmax(bends / 0.7, dim=0).double()
    total = max(num_frames, round(num_frames * num_cells * retention))
    raw = weights * (total - num_frames)
    counts = 1 + raw.floor().clamp(max=num_cells - 1).long()
    order = (raw - raw.floor()).sort(descending=True, stable=True).indices
    while (left := total - int(counts.sum())) > 0:
        room = order[counts[order] < num_cells][:left]
        counts[room] += 1
    norms = tokens.norm(dim=-1)
    least, most = norms.amin(dim=1, keepdim=True), norms.amax(dim=1, keepdim=True)
    scores = 1 - F.cosine_similarity(tokens, means[:, None], dim=-1, eps=1e-6)
    scores = scores + (norms - least) / (most - least + 1e-6)
    kept = torch.cat(
        [
            scores[frame].topk(count).indices + frame * num_cells
            for frame, count in enumerate(counts.tolist())
        ]
    )
    kept = kept.sort().values
    return kept, tokens.flatten(0, 1)[kept]


def fewer_frames(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """All tokens of evenly spaced frames."""
    num_frames, num_cells, _ = features.tokens.shape
    count = max(1, round(retention * num_frames))
    frames = [i * (num_frames - 1) // max(1, count - 1) for i in range(count)]
    cells = torch.arange(num_cells)
    kept = torch.cat([cells + frame * num_cells for frame in frames]).to(features.tokens.device)
    return kept, features.tokens[frames].float().flatten(0, 1)


def pool_time(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Averages over stretches of frames."""
    num_frames, num_cells, _ = features.tokens.shape
    count = max(1, round(retention * num_frames))
    bounds = [i * num_frames // count for i in range(count + 1)]
    spans = list(pairwise(bounds))
    means = torch.stack([features.tokens[a:b].float().mean(dim=0) for a, b in spans])
    middles = torch.tensor([(a + b - 1) // 2 for a, b in spans])[:, None]
    kept = (middles * num_cells + torch.arange(num_cells)).flatten()
    return kept.to(means.device), means.flatten(0, 1)


def pool_space(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Adaptive average pooling of every frame."""
    height, width = features.grid
    rows = min(height, max(1, round(height * math.sqrt(retention))))
    columns = min(width, max(1, round(retention * height * width / rows)))
    images = features.tokens.float().unflatten(1, features.grid).permute(0, 3, 1, 2)
    pooled = F.adaptive_avg_pool2d(images, (rows, columns)).flatten(2).mT
    centers = [
        torch.tensor([(i * n // m + -(-(i + 1) * n // m) - 1) // 2 for i in range(m)])
        for n, m in ((height, rows), (width, columns))
    ]
    cells = (centers[0][:, None] * width + centers[1]).flatten()
    starts = torch.arange(len(pooled))[:, None] * height * width
    return (starts + cells).flatten().to(pooled.device), pooled.flatten(0, 1)


def block(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """The first token of every block of 2 x 2."""
    numbers = torch.arange(features.tokens[..., 0].numel(), device=features.tokens.device)
    kept = numbers.view(-1, *features.grid)[:, ::2, ::2].flatten()
    return kept, features.tokens.flatten(0, 1)[kept].float()
