"""PruneVid before the language model, scene by scene and frame by frame."""

from __future__ import annotations

from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from references.clusters import density_peaks, means_of, nearest_center
from tango_core.types import VisualFeatures

TAU, TEMPORAL, NEIGHBORS = 0.8, 0.25, 7


def compress(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Clusters of the averaged static places of every scene, and of every frame's other tokens."""
    tokens = features.tokens.float()
    num_frames, num_cells, _ = tokens.shape
    groups = []  # (first position, cells, points)
    start = 0
    for length in scenes(tokens.mean(dim=1)):
        scene = tokens[start : start + length]
        static = torch.zeros(num_cells, dtype=torch.bool, device=tokens.device)
        if length > 1:
            units = F.normalize(scene, dim=-1).transpose(0, 1)
            cosines = units @ units.mT
            static = (cosines.sum(dim=(1, 2)) - length) / (length * (length - 1)) > TAU
        still, moving = static.nonzero()[:, 0], (~static).nonzero()[:, 0]
        groups.append((start * num_cells, still, scene[:, still].mean(dim=0)))
        for frame in range(length):
            groups.append(((start + frame) * num_cells, moving, scene[frame, moving]))
        start += length
    counts = shared_out(round(num_frames * num_cells * retention), [len(g[1]) for g in groups])
    kept, values = [], []
    for (first, cells, points), count in zip(groups, counts, strict=True):
        if count:
            centers, distances = density_peaks(points, count, NEIGHBORS)
            labels = nearest_center(distances, centers)
            kept.append(cells[centers] + first)
            values.append(means_of(points, labels, count)[0])
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]


def shared_out(amount: int, sizes: list[int]) -> list[int]:
    """Whole parts in proportion to sizes, by largest remainder."""
    amount = min(amount, sum(sizes))
    quotas = [amount * size / sum(sizes) for size in sizes]
    counts = [int(quota + 1e-9) for quota in quotas]
    order = sorted(range(len(sizes)), key=lambda i: -round(quotas[i] - counts[i], 9))
    for index in order[: amount - sum(counts)]:
        counts[index] += 1
    return counts


def scenes(frames: Tensor) -> list[int]:
    """Lengths of the scenes, from clusters of (T, D) frame means made contiguous."""
    centers, distances = density_peaks(frames, max(1, int(len(frames) * TEMPORAL)), NEIGHBORS)
    labels = nearest_center(distances, centers).tolist()
    runs = [(label, len(list(group))) for label, group in groupby(labels)]
    longest = {label: max(n for other, n in runs if other == label) for label, _ in runs}
    runs = joined([(a if n == longest[a] and n > 1 else None, n) for a, n in runs])
    while len(runs) > 1 and None in [label for label, _ in runs]:
        gap = [label for label, _ in runs].index(None)
        left = runs[gap - 1][1] if gap else 0
        right = runs[gap + 1][1] if gap + 1 < len(runs) else 0
        label = runs[gap - 1][0] if left >= right else runs[gap + 1][0]
        runs = joined([*runs[:gap], (label, runs[gap][1]), *runs[gap + 1 :]])
    return [length for _, length in runs]


def joined(runs: list[tuple[int | None, int]]) -> list[tuple[int | None, int]]:
    """Neighbouring runs of one label made one."""
    return [
        (label, sum(length for _, length in group))
        for label, group in groupby(runs, key=lambda run: run[0])
    ]
