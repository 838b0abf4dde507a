"""FlashVID before the language model as released for LLaVA, with true means of trees."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from references.clusters import density_peaks, means_of
from references.fastvid import segments
from tango_core.types import VisualFeatures

ALPHA, LINK_TAU, INNER_SHARE = 0.7, 0.8, 0.8


def compress(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Diverse tokens of every frame, and clusters of the trees that the others form."""
    tokens = features.tokens.float()
    num_cells = tokens.shape[1]
    # Above 0.8 the step inside the language model keeps more, and all tokens come before it.
    outer = min(1.0, round(retention / INNER_SHARE, 12))
    total = min(num_cells, math.ceil(num_cells * outer - 1e-9))
    count = math.ceil(ALPHA * total - 1e-9)
    kept, values, start = [], [], 0
    for length in segments(tokens.mean(dim=1)):
        frames = tokens[start : start + length]
        positions, merged = _scene(frames, features.attention[start : start + length], total, count)
        kept.append(positions + start * num_cells)
        values.append(merged)
        start += length
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]


def _scene(tokens: Tensor, attention: Tensor, total: int, count: int) -> tuple[Tensor, Tensor]:
    """Kept positions of one scene and their tokens."""
    num_frames, num_cells, _ = tokens.shape
    units = F.normalize(tokens, dim=-1)
    center = tokens.mean(dim=1).mean(dim=0)
    chosen = torch.zeros(num_frames, num_cells, dtype=torch.bool, device=tokens.device)
    for frame in range(num_frames):
        distances = 1 - units[frame] @ units[frame].mT
        distances.fill_diagonal_(0)
        weighted = distances * (attention[frame] * (tokens[frame] @ center))
        picked = [int(weighted.sort(dim=0).values[min(1, num_cells - 1)].argmax())]
        while len(picked) < count:
            gaps = weighted[picked].amin(dim=0)
            gaps[picked] = -torch.inf
            picked.append(int(gaps.argmax()))
        chosen[frame, picked] = True
    best = torch.full_like(attention, -1.0)
    parents = torch.zeros_like(chosen, dtype=torch.int64)
    for frame in range(1, num_frames):
        similarity = units[frame] @ units[frame - 1].mT
        similarity[:, chosen[frame - 1]] = -1
        best[frame], parents[frame] = similarity.max(dim=1)
    best[chosen] = -1
    linked = best > LINK_TAU
    if int((~linked).sum()) < total * num_frames:
        rank = num_frames * num_cells - total * num_frames
        linked = best > max(float(best.flatten().sort(descending=True).values[rank - 1]), -1 + 1e-6)
        linked &= rank > 0
    sums, sizes = tokens.clone(), torch.ones_like(attention)
    for frame in range(num_frames - 1, 0, -1):
        cells = linked[frame].nonzero()[:, 0]
        sums[frame - 1].index_add_(0, parents[frame, cells], sums[frame, cells])
        sizes[frame - 1].index_add_(0, parents[frame, cells], sizes[frame, cells])
    is_root = ~linked & ~chosen
    share = (total - count) * num_frames / max(1, int(is_root.sum()))
    kept, values = [chosen.flatten().nonzero()[:, 0]], [tokens[chosen]]
    for frame in range(num_frames):
        cells = is_root[frame].nonzero()[:, 0]
        points = sums[frame, cells] / sizes[frame, cells, None]
        wanted = len(cells) if share >= 1 else math.ceil(len(cells) * share)
        if wanted < len(cells) and wanted:
            centers, distances = density_peaks(points, wanted, min(wanted, 7))
            nearest = distances[:, centers].argmin(dim=1)
            nearest[centers] = torch.arange(wanted, device=nearest.device)
            points, cells = means_of(points, nearest, wanted)[0], cells[centers]
        if wanted:
            kept.append(cells + frame * num_cells)
            values.append(points)
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]
