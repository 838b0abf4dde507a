"""HoliTom before the language model, segment by segment."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from references.clusters import density_peaks, means_of
from tango_core.types import VisualFeatures

BETA = 0.6


def compress(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Top of the dynamic tokens of every frame, clusters of the static places of every segment."""
    tokens, attention = features.tokens.float(), features.attention
    num_frames, num_cells, _ = tokens.shape
    units = F.normalize(tokens, dim=-1)
    unchanged = (units[1:] * units[:-1]).sum(dim=-1) > (0.65 if retention <= 0.1 else 0.8)
    lengths = segments(unchanged)
    static, saved, start = [], 0, 0
    for length in lengths:
        still = torch.zeros(num_cells, dtype=torch.bool, device=tokens.device)
        if length > 1:
            still = unchanged[start : start + length - 1].all(dim=0)
        static.append(still)
        saved += int(still.sum()) * (length - 1)
        start += length
    total = num_frames * num_cells
    share = min(retention / ((total - saved) / total), 1)
    kept, values, start = [], [], 0
    for length, still in zip(lengths, static, strict=True):
        moving = (~still).nonzero()[:, 0]
        count = math.ceil(len(moving) * share)
        for frame in range(start, start + length):
            cells = moving[attention[frame, moving].topk(count).indices]
            kept.append(cells + frame * num_cells)
            values.append(tokens[frame, cells])
        cells = still.nonzero()[:, 0]
        if count := round(len(cells) * share):
            points = tokens[start : start + length, cells].mean(dim=0)
            centers, distances = density_peaks(points, count, min(7, count))
            others = torch.ones(len(cells), dtype=torch.bool, device=tokens.device)
            others[centers] = False
            nearest = distances[others][:, centers].argmin(dim=1)
            means, counts = means_of(points[others], nearest, count)
            own = points[centers]
            merged = torch.where(counts[:, None] > 0, BETA * own + (1 - BETA) * means, own)
            kept.append(cells[centers] + start * num_cells)
            values.append(merged)
        start += length
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]


def segments(unchanged: Tensor) -> list[int]:
    """Lengths of the windows that save most: a table of all windows, then the recurrence."""
    num_frames = len(unchanged) + 1
    saves = torch.zeros(num_frames, num_frames, dtype=torch.int64, device=unchanged.device)
    for first in range(num_frames - 1):
        together = unchanged[first:].int().cummin(dim=0).values.sum(dim=1)
        steps = torch.arange(1, len(together) + 1, device=unchanged.device)
        saves[first, first + 1 :] = together * steps
    table = saves.tolist()
    best, last = [0], []
    for frame in range(num_frames):
        options = [
            best[frame - width + 1] + table[frame - width + 1][frame]
            for width in range(1, frame + 2)
        ]
        last.append(options.index(max(options)) + 1)
        best.append(max(options))
    lengths, frame = [], num_frames - 1
    while frame >= 0:
        lengths.append(last[frame])
        frame -= last[frame]
    return lengths[::-1]
