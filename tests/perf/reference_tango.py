"""The published Tango algorithm, frame by frame, as a yardstick for speed and results.

Nothing is shared with the package: angles are computed for every token, and every group is
clustered by itself with its own distance matrix. Merged vectors stay with their own cluster,
densities carry no noise.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from references.merging import windows_that_save_most
from torch import Tensor

from tango_core.types import VisualFeatures

CONTEXT, ALPHA, NEIGHBORS, BETA, STATIC_TAU = 0.4, 1.5, 7, 0.6, 0.8


def compress(features: VisualFeatures, retention: float, tau: float) -> tuple[Tensor, Tensor]:
    """Kept positions (K,) in ascending order and their tokens (K, D), with published defaults."""
    tokens = features.tokens.float()
    _, num_cells, dim = tokens.shape
    saliency = features.saliency.clone()
    saliency[:, list(features.sinks)] = 0
    roped = rope(tokens, features.timestamps, features.grid)
    kept: dict[int, Tensor] = {}
    start = 0
    units = F.normalize(tokens, dim=-1)
    for length in windows_that_save_most((units[:-1] * units[1:]).sum(dim=-1) > tau):
        frames = range(start, start + length)
        if length == 1:
            for cell, vector in one_group(tokens[start], roped[start], saliency[start], retention):
                kept[start * num_cells + cell] = vector
        else:
            scene = units[start : start + length]
            static = ((scene[:-1] * scene[1:]).sum(-1) > STATIC_TAU).all(dim=0)
            still, moving = static.nonzero()[:, 0], (~static).nonzero()[:, 0]
            size, saved = length * num_cells, (length - 1) * len(still)
            share = min(retention / ((size - saved) / size), 1)
            means = tokens[start : start + length, still].mean(dim=0)
            mean_saliency = saliency[start : start + length, still].mean(dim=0)
            for place, vector in one_group(means, roped[start, still], mean_saliency, share):
                kept[start * num_cells + int(still[place])] = vector
            total = math.ceil(len(moving) * share)
            salient = int(total * (1.0 - CONTEXT))
            pool = []
            for frame in frames:
                picked = pick(roped[frame, moving], saliency[frame, moving], salient)
                for place in picked:
                    cell = int(moving[place])
                    kept[frame * num_cells + cell] = tokens[frame, cell]
                left = [place for place in range(len(moving)) if place not in set(picked)]
                pool += [frame * num_cells + int(moving[place]) for place in left]
            flat = torch.tensor(pool, dtype=torch.int64, device=tokens.device)
            merged = merge(
                tokens.reshape(-1, dim)[flat],
                roped.reshape(-1, dim)[flat],
                (total - salient) * length,
            )
            kept.update({pool[place]: vector for place, vector in merged})
        start += length
    positions = sorted(kept)
    return torch.tensor(positions), torch.stack([kept[position] for position in positions])


def rope(tokens: Tensor, timestamps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Unit features rotated by time, row and column, angles computed for every token."""
    num_frames, num_cells, dim = tokens.shape
    space = 2 * (dim // 6)
    cell = torch.arange(num_cells, device=tokens.device)
    positions = (
        timestamps.to(tokens.device).float()[:, None].expand(-1, num_cells),
        (cell // grid[1]).float().expand(num_frames, -1),
        (cell % grid[1]).float().expand(num_frames, -1),
    )
    units = F.normalize(tokens, dim=-1)
    rotated = []
    sections = units.split([dim - 2 * space, space, space], dim=-1)
    for section, position, base in zip(sections, positions, (1e4, 1e3, 1e3), strict=True):
        width = section.shape[-1]
        steps = torch.arange(0, width, 2, device=tokens.device).float() / width
        angles = position[..., None] * (1.0 / base**steps)
        angles = torch.cat([angles, angles], dim=-1)
        first, second = section.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        rotated.append(section * angles.cos() + turned * angles.sin())
    return torch.cat(rotated, dim=-1)


def dpc_knn(points: Tensor, num_centers: int) -> list[int]:
    """Centres by descending score, from the definition."""
    distances = torch.cdist(points, points)
    distances.fill_diagonal_(0)
    count = min(NEIGHBORS + 1, len(points))
    nearest = distances.topk(count, dim=-1, largest=False).values[:, 1:]
    density = torch.exp(-(nearest**2).mean(dim=-1))
    denser = density[None, :] > density[:, None]
    gap = torch.where(denser, distances, distances.max()).amin(dim=-1)
    return (density * gap).sort(descending=True, stable=True).indices[:num_centers].tolist()


def pick(roped: Tensor, saliency: Tensor, count: int) -> list[int]:
    """Most salient tokens, at most one per cluster of candidates."""
    num_candidates = min(int(ALPHA * count), len(saliency))
    count = min(count, num_candidates)
    candidates = saliency.sort(descending=True, stable=True).indices[:num_candidates]
    if num_candidates <= max(count, 1):
        return candidates.tolist()
    centers = dpc_knn(roped[candidates], count)
    labels = torch.cdist(roped[candidates], roped[candidates[centers]]).argmin(dim=-1).tolist()
    return sorted({int(candidates[labels.index(label)]) for label in range(count)})


def merge(tokens: Tensor, roped: Tensor, count: int) -> list[tuple[int, Tensor]]:
    """(place, vector) of every anchor of a pool."""
    if len(tokens) <= count:
        return list(enumerate(tokens))
    if count == 0:
        return []
    centers = sorted(dpc_knn(roped, count))
    labels = torch.cdist(roped, roped[centers]).argmin(dim=-1)
    merged = []
    for label, center in enumerate(centers):
        members = tokens[labels == label]
        weight = max(1 / len(members), BETA)
        merged.append((center, weight * tokens[center] + (1 - weight) * members.mean(dim=0)))
    return merged


def one_group(
    tokens: Tensor, roped: Tensor, saliency: Tensor, share: float
) -> list[tuple[int, Tensor]]:
    """(place, vector) of what one frame or one static group keeps."""
    if len(tokens) == 0:
        return []
    total = max(1, math.ceil(len(tokens) * share))
    salient = int(total * (1.0 - CONTEXT))
    picked = pick(roped, saliency, salient)
    left = [place for place in range(len(tokens)) if place not in set(picked)]
    merged = merge(tokens[left], roped[left], total - salient)
    return [(place, tokens[place]) for place in picked] + [
        (left[place], vector) for place, vector in merged
    ]
