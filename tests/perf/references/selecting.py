"""Methods that keep or pool tokens: baselines and controls, VidCom2, DivPrune, EVS, V-CAST."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.types import VisualFeatures


def full(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """A copy of everything."""
    flat = features.tokens.flatten(0, 1).float()
    return torch.arange(len(flat), device=flat.device), flat.clone()


def random(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """The first entries of the permutation of seed 0."""
    flat = features.tokens.flatten(0, 1).float()
    drawn = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    kept = drawn[: round(len(flat) * retention)].sort().values.to(flat.device)
    return kept, flat[kept]


def uniform(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """The middles of equal stretches."""
    flat = features.tokens.flatten(0, 1).float()
    count = round(len(flat) * retention)
    kept = (2 * torch.arange(count, device=flat.device) + 1) * len(flat) // (2 * count)
    return kept, flat[kept]


def topk(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """The most salient tokens of every frame, frame by frame."""
    flat = features.tokens.flatten(0, 1).float()
    num_frames, num_cells = features.saliency.shape
    count = round(len(flat) * retention)
    kept = []
    for frame, scores in enumerate(features.saliency):
        quota = (frame + 1) * count // num_frames - frame * count // num_frames
        kept.append(scores.topk(quota).indices + frame * num_cells)
    kept = torch.cat(kept).sort().values
    return kept, flat[kept]


def evs(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """The first frame, and what changed most after it (from a budget of one frame on)."""
    tokens = features.tokens.float()
    changes = torch.full(tokens.shape[:2], torch.inf, device=tokens.device)
    changes[1:] = 1 - F.cosine_similarity(tokens[1:], tokens[:-1], dim=-1)
    kept = changes.flatten().topk(round(changes.numel() * retention)).indices.sort().values
    return kept, tokens.flatten(0, 1)[kept]


def vidcom2(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Least similar to the mean of the clip and of the frame, over half of the channels."""
    tokens = features.tokens.float()
    _, num_cells, dim = tokens.shape
    spread = tokens.var(dim=(0, 1), unbiased=False)
    channels = spread.topk(int(0.5 * dim), largest=False).indices
    units = F.normalize(tokens[..., channels], dim=-1)

    def similarity(center: Tensor) -> Tensor:
        squares = ((units - center) ** 2).sum(dim=-1)
        return sum(torch.exp(-squares / (2 * width)) for width in (1 / 8, 1 / 4, 1 / 2, 1, 2))

    to_clip = similarity(units.mean(dim=(0, 1)))
    to_frame = similarity(units.mean(dim=1, keepdim=True))
    distinctness = -to_clip.mean(dim=1)
    weights = torch.softmax((distinctness - distinctness.max()) / 0.01, dim=0)
    shares = (retention * (1 + weights - weights.mean())).clamp(max=1)
    kept = []
    for frame, share in enumerate(shares.tolist()):
        count = max(1, round(share * num_cells))
        scores = to_clip[frame] + to_frame[frame]
        kept.append(scores.topk(count, largest=False).indices + frame * num_cells)
    kept = torch.cat(kept).sort().values
    return kept, tokens.flatten(0, 1)[kept]


def divprune(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Farthest-point sampling on the whole matrix of cosine distances."""
    flat = features.tokens.flatten(0, 1).float()
    units = F.normalize(flat, dim=-1)
    distances = 1 - units @ units.mT
    gaps = distances.fill_diagonal_(torch.inf).amin(dim=1)
    distances.fill_diagonal_(0)
    chosen = [int(gaps.argmax())]
    gaps = distances[chosen[0]].clone()
    gaps[chosen[0]] = -1
    while len(chosen) < round(len(flat) * retention):
        chosen.append(int(gaps.argmax()))
        gaps = torch.minimum(gaps, distances[chosen[-1]])
        gaps[chosen[-1]] = -1
    kept = torch.tensor(sorted(chosen), device=flat.device)
    return kept, flat[kept]


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
