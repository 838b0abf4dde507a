"""Methods that merge before the language model: FastVID, FlashVID, HoliTom, PruneVid, VisionZip."""

from __future__ import annotations

import math
from itertools import groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.types import VisualFeatures


def density_peaks(points: Tensor, num_centers: int, num_neighbors: int) -> tuple[Tensor, Tensor]:
    """Centres by descending score, a point being its own first neighbour.

    Args:
        points: (M, D) float32.
        num_centers: C.
        num_neighbors: Neighbours that make a density.

    Returns:
        (C,) int64, and the (M, M) distances divided by sqrt(D).
    """
    distances = torch.cdist(points, points) / points.shape[1] ** 0.5
    distances.fill_diagonal_(0)
    nearest = distances.topk(min(num_neighbors, len(points)), dim=1, largest=False).values
    density = torch.exp(-(nearest**2).mean(dim=1))
    denser = density[None, :] > density[:, None]
    gap = torch.where(denser, distances, distances.max()).amin(dim=1)
    score = density * gap
    return score.sort(descending=True, stable=True).indices[:num_centers], distances


def nearest_center(distances: Tensor, centers: Tensor) -> Tensor:
    """(M,) cluster of every point; a centre is in its own."""
    labels = distances[:, centers].argmin(dim=1)
    labels[centers] = torch.arange(len(centers), device=labels.device)
    return labels


def means_of(points: Tensor, labels: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """(C, D) means of the points of each label, 0 where there is none, and (C,) counts."""
    counts = torch.bincount(labels, minlength=num_clusters)
    sums = points.new_zeros(num_clusters, points.shape[1]).index_add_(0, labels, points)
    return sums / counts.clamp(min=1)[:, None], counts


FASTVID_SEGMENTS, FASTVID_TAU, CONTEXT, STRIDE, BETA, FASTVID_NEIGHBORS = 8, 0.9, 0.4, 4, 0.6, 4


def in_order(kept: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Ascending positions of all parts, and their tokens."""
    order = torch.cat(kept).sort()
    return order.values, torch.cat(values)[order.indices]


def fastvid(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Salient tokens of every frame, and anchors that absorb the rest of their segment."""
    tokens = features.tokens.float()
    num_frames, num_cells, _ = tokens.shape
    flat = tokens.flatten(0, 1)
    total = int(num_cells * retention)
    context = int(total * CONTEXT)
    salient = features.saliency.topk(total - context, dim=1).indices
    is_rest = torch.ones(num_frames, num_cells, dtype=torch.bool, device=tokens.device)
    is_rest.scatter_(1, salient, False)
    starts = torch.arange(num_frames, device=tokens.device)[:, None] * num_cells
    kept = [(salient + starts).flatten()]
    values = [flat[kept[0]]]
    start = 0
    for length in scenes_between_cuts(features.frame_embeddings.float()):
        anchor_frames = range(start + length - 1, start - 1, -STRIDE)
        count = context * length // len(anchor_frames)
        pool = is_rest[start : start + length].flatten().nonzero()[:, 0] + start * num_cells
        units = F.normalize(flat[pool], dim=-1)
        for frame in anchor_frames:
            rest = is_rest[frame].nonzero()[:, 0] + frame * num_cells
            anchors = rest[density_peaks(flat[rest], count, FASTVID_NEIGHBORS)[0]]
            nearest = (units @ F.normalize(flat[anchors], dim=-1).mT).argmax(dim=-1)
            means, counts = means_of(flat[pool], nearest, count)
            weights = (1 / (counts + 1)).clamp(min=BETA)[:, None]
            kept.append(anchors)
            values.append(weights * flat[anchors] + (1 - weights) * means)
        start += length
    return in_order(kept, values)


def scenes_between_cuts(frames: Tensor) -> list[int]:
    """Lengths between cuts: where frames differ, and at the least similar pairs in any case."""
    similarity = F.cosine_similarity(frames[:-1], frames[1:], dim=-1)
    cuts = similarity < FASTVID_TAU
    cuts[similarity.topk(min(FASTVID_SEGMENTS - 1, len(similarity)), largest=False).indices] = True
    ends = [-1, *cuts.nonzero()[:, 0].tolist(), len(frames) - 1]
    return [stop - start for start, stop in pairwise(ends)]


ALPHA, LINK_TAU, INNER_SHARE = 0.7, 0.8, 0.8


def flashvid(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Diverse tokens of every frame, and clusters of the trees that the others form."""
    tokens = features.tokens.float()
    num_cells = tokens.shape[1]
    # Above 0.8 the step inside the language model keeps more, and all tokens come before it.
    outer = min(1.0, round(retention / INNER_SHARE, 12))
    total = min(num_cells, math.ceil(num_cells * outer - 1e-9))
    count = math.ceil(ALPHA * total - 1e-9)
    kept, values, start = [], [], 0
    for length in scenes_between_cuts(tokens.mean(dim=1)):
        frames = tokens[start : start + length]
        positions, merged = _flashvid_scene(
            frames, features.attention[start : start + length], total, count
        )
        kept.append(positions + start * num_cells)
        values.append(merged)
        start += length
    return in_order(kept, values)


def _flashvid_scene(
    tokens: Tensor, attention: Tensor, total: int, count: int
) -> tuple[Tensor, Tensor]:
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
            nearest = nearest_center(distances, centers)
            points, cells = means_of(points, nearest, wanted)[0], cells[centers]
        if wanted:
            kept.append(cells + frame * num_cells)
            values.append(points)
    return in_order(kept, values)


def holitom(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Top of the dynamic tokens of every frame, clusters of the static places of every segment."""
    tokens, attention = features.tokens.float(), features.attention
    num_frames, num_cells, _ = tokens.shape
    units = F.normalize(tokens, dim=-1)
    unchanged = (units[1:] * units[:-1]).sum(dim=-1) > (0.65 if retention <= 0.1 else 0.8)
    lengths = windows_that_save_most(unchanged)
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
    return in_order(kept, values)


def windows_that_save_most(unchanged: Tensor) -> list[int]:
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


PRUNEVID_TAU, TEMPORAL, PRUNEVID_NEIGHBORS = 0.8, 0.25, 7


def prunevid(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Clusters of the averaged static places of every scene, and of every frame's other tokens."""
    tokens = features.tokens.float()
    num_frames, num_cells, _ = tokens.shape
    groups = []  # (first position, cells, points)
    start = 0
    for length in clustered_scenes(tokens.mean(dim=1)):
        scene = tokens[start : start + length]
        static = torch.zeros(num_cells, dtype=torch.bool, device=tokens.device)
        if length > 1:
            units = F.normalize(scene, dim=-1).transpose(0, 1)
            cosines = units @ units.mT
            static = (cosines.sum(dim=(1, 2)) - length) / (length * (length - 1)) > PRUNEVID_TAU
        still, moving = static.nonzero()[:, 0], (~static).nonzero()[:, 0]
        groups.append((start * num_cells, still, scene[:, still].mean(dim=0)))
        for frame in range(length):
            groups.append(((start + frame) * num_cells, moving, scene[frame, moving]))
        start += length
    counts = shared_out(round(num_frames * num_cells * retention), [len(g[1]) for g in groups])
    kept, values = [], []
    for (first, cells, points), count in zip(groups, counts, strict=True):
        if count:
            centers, distances = density_peaks(points, count, PRUNEVID_NEIGHBORS)
            labels = nearest_center(distances, centers)
            kept.append(cells[centers] + first)
            values.append(means_of(points, labels, count)[0])
    return in_order(kept, values)


def shared_out(amount: int, sizes: list[int]) -> list[int]:
    """Whole parts in proportion to sizes, by largest remainder."""
    amount = min(amount, sum(sizes))
    quotas = [amount * size / sum(sizes) for size in sizes]
    counts = [int(quota + 1e-9) for quota in quotas]
    order = sorted(range(len(sizes)), key=lambda i: -round(quotas[i] - counts[i], 9))
    for index in order[: amount - sum(counts)]:
        counts[index] += 1
    return counts


def clustered_scenes(frames: Tensor) -> list[int]:
    """Lengths of the scenes, from clusters of (T, D) frame means made contiguous."""
    centers, distances = density_peaks(
        frames, max(1, int(len(frames) * TEMPORAL)), PRUNEVID_NEIGHBORS
    )
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


def visionzip(features: VisualFeatures, retention: float) -> tuple[Tensor, Tensor]:
    """Dominant tokens by attention, and spaced targets plus the mean of what is like them."""
    tokens, keys = features.tokens.float(), features.keys.float()
    num_frames, num_cells, _ = tokens.shape
    total = math.ceil(retention * num_cells)
    contextual = min(round(0.05 * num_cells), total - 1)
    dominant = features.attention.topk(total - contextual, dim=1).indices
    is_rest = torch.ones(num_frames, num_cells, dtype=torch.bool, device=tokens.device)
    is_rest.scatter_(1, dominant, False)
    rest = is_rest.nonzero()[:, 1].view(num_frames, -1)
    step = max(1, rest.shape[1] // contextual)
    is_target = torch.zeros(rest.shape[1], dtype=torch.bool, device=tokens.device)
    is_target[torch.arange(contextual) * step] = True
    targets, others = rest[:, is_target], rest[:, ~is_target]

    def rows(values: Tensor, cells: Tensor) -> Tensor:
        return values.gather(1, cells[..., None].expand(-1, -1, values.shape[-1]))

    units = F.normalize(keys, dim=-1)
    nearest = (rows(units, others) @ rows(units, targets).mT).argmax(dim=-1)
    members = F.one_hot(nearest, contextual).float()
    counts = members.sum(dim=1).clamp(min=1)[..., None]
    merged = rows(tokens, targets) + members.mT @ rows(tokens, others) / counts
    cells = torch.cat([dominant, targets], dim=1)
    values = torch.cat([rows(tokens, dominant), merged], dim=1)
    order = cells.sort(dim=1)
    starts = torch.arange(num_frames, device=tokens.device)[:, None] * num_cells
    return (order.values + starts).flatten(), rows(values, order.indices).flatten(0, 1)
