"""PruneVid: average static positions over a scene, then cluster them and every frame's others.

Paper: "PruneVid: Visual Token Pruning for Efficient Video Large Language Models", Huang et al.,
Findings of ACL 2025, Section 3.2, https://arxiv.org/abs/2412.16117. This is the step before the
language model; the release (Visual-AI/PruneVid) also prunes by attention in layer 10.

The release clusters every group of more than 14 tokens to half its size, without a budget; here
the groups share round(retention * T * L) tokens, so that methods can be compared at equal
cost. Further differences: a scene of one frame is entirely dynamic (the release divides 0 by 0
there), clips may have fewer than 7 frames, no random noise is added to densities, and a merged
token has the position of its cluster's centre instead of the order of clusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import NOWHERE, Combination, Drawing, Terms, in_order, over_frames
from tango_core.compressors.base import ExactBudget, num_kept
from tango_core.compressors.options import Cosine, Share
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import apportion, floor_share
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.finite import read_checked
from tango_core.ops.merging import frame_means, mean_weights
from tango_core.ops.transfer import upload_together
from tango_core.types import VisualFeatures

NUM_NEIGHBORS = 7


@dataclass(frozen=True)
class PruneVid(ExactBudget):
    """Plain averages of clusters: static positions over a scene, and dynamic tokens in every frame.

    Keeps round(retention * T * L) tokens, divided over the groups by their size (largest
    remainder). Averaging static positions may leave fewer distinct tokens than that, as in a frozen
    clip; then all of them are kept.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        tau: A position is static if its mean cosine over a scene's frames exceeds this, in [-1, 1].
        temporal_ratio: Number of frame clusters as a share of the frames, in (0, 1].
    """

    checks_in_plan: ClassVar[bool] = True
    tau: Cosine = 0.8
    temporal_ratio: Share = 0.25

    def _plan(self, features: VisualFeatures) -> Combination:
        """Find scenes and static positions, set budgets, then cluster scene by scene."""
        tokens = features.tokens
        num_frames, tokens_per_frame, _ = tokens.shape
        labels = self._frame_clusters(tokens)
        if tokens.device.type == "cpu":
            (found,) = read_checked(features, self.needs, labels)
            lengths = contiguous_scenes(found.tolist())
            means = np.stack([_mean_cosine(tokens[span]).numpy() for span in _spans(lengths)])
        else:
            # The host computes scenes from all cosines, which takes a single read.
            found, cosines = read_checked(features, self.needs, labels, _all_cosines(tokens))
            lengths = contiguous_scenes(found.tolist())
            means = np.stack([_mean_of_pairs(cosines[:, s, s]) for s in _spans(lengths)])
        spans, static = _spans(lengths), means > self.tau
        sizes = np.concatenate(
            [
                [still, *[tokens_per_frame - still] * length]
                for still, length in zip(static.sum(axis=1), lengths, strict=True)
            ]
        )
        wanted = num_kept(num_frames * tokens_per_frame, self.retention)
        counts = iter(apportion(wanted, sizes * min(wanted / sizes.sum(), 1), sizes).tolist())
        groups: list[tuple[slice, bool, NDArray[np.int64], list[int]]] = []
        for span, length, still in zip(spans, lengths, static, strict=True):
            groups.append((span, True, np.flatnonzero(still), [next(counts)]))
            groups.append(
                (span, False, np.flatnonzero(~still), [next(counts) for _ in range(length)])
            )
        groups = [group for group in groups if any(group[3])]
        # One upload for all scenes.
        arrays = [part for _, _, at, budget in groups for part in (at, budget, _filled(budget))]
        uploaded = iter(upload_together(arrays, tokens.device))
        averages = _averages(tokens, [(span, at) for span, is_still, at, _ in groups if is_still])
        parts: list[Terms] = []
        used = 0
        for span, is_still, at, budget in groups:
            spatial, limits, filled = next(uploaded), next(uploaded), next(uploaded)
            scene, first = tokens[span], span.start * tokens_per_frame
            points: Iterable[Tensor]
            if is_still:
                points = [averages[None, used : used + len(at)]]
                used += len(at)
            else:
                # Frame by frame, to avoid a copy of all tokens.
                blocks = row_blocks(len(scene), scene[0].numel(), tokens.device)
                points = (scene[rows].index_select(1, spatial) for rows in blocks)
            starts = torch.arange(1 if is_still else len(scene), device=tokens.device)
            starts = starts[:, None] * tokens_per_frame + first
            terms = _cluster(points, spatial, budget, limits, filled, starts)
            parts.append(over_frames(terms, len(scene) if is_still else 1, tokens_per_frame))
        cells = np.repeat(static, lengths, axis=0)
        drawing = Drawing(tuple(lengths), torch.from_numpy(cells))
        return in_order(features, parts, drawing)

    def _frame_clusters(self, tokens: Tensor) -> Tensor:
        """(T,) int64 cluster of every frame, by its mean token."""
        frames = tokens.mean(dim=1, dtype=torch.float32)[None]
        num_clusters = max(1, floor_share(len(tokens), self.temporal_ratio))
        distances = squared_distances(frames)
        scaled = distances / frames.shape[-1]
        centers = density_peaks(scaled, num_clusters, NUM_NEIGHBORS, include_self=True)
        return assign_to_centers(distances, centers)[0]


def _spans(lengths: list[int]) -> list[slice]:
    """Frame ranges of the scenes."""
    stops = accumulate(lengths)
    return [slice(stop - length, stop) for length, stop in zip(lengths, stops, strict=True)]


def _mean_cosine(scene: Tensor) -> Tensor:
    """(L,) float32 mean cosine between the frames of a scene; -1 for a scene of one frame."""
    length = len(scene)
    if length == 1:
        return torch.full(scene.shape[1:2], -1.0)
    # The sum of all pairwise cosines is the squared length of the sum of unit vectors.
    total = torch.zeros(scene.shape[1:])
    for frame in scene:
        tokens = frame.float()
        lengths = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_(min=1e-12)
        total.addcmul_(tokens, 1 / lengths)
    pairs: Tensor = torch.linalg.vector_norm(total, dim=-1).square() - length
    return pairs / (length * (length - 1))


def _all_cosines(tokens: Tensor) -> Tensor:
    """(L, T, T) float32 cosines between frames per position; 0.8 MB for T = 32, L = 196."""
    units = F.normalize(tokens.float(), dim=-1).transpose(0, 1)
    return units @ units.mT


def _mean_of_pairs(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """(L,) mean of (L, F, F) cosines over pairs of frames; -1 if F = 1."""
    length = cosines.shape[1]
    if length == 1:
        return np.full(len(cosines), -1, dtype=np.float32)
    pairs: NDArray[np.float32] = cosines.sum(axis=(1, 2)) - np.float32(length)
    return pairs / np.float32(length * (length - 1))


def contiguous_scenes(labels: list[int]) -> list[int]:
    """Turn clusters of frames into contiguous scenes.

    Every cluster keeps only its longest run (several if equally long), and clusters without a run
    of two frames are dissolved. Leftover frames join the longer adjacent run, or the left one if
    both are equally long.

    Args:
        labels: Cluster index of every frame.

    Returns:
        Lengths of the scenes in order; they add up to the number of frames.
    """
    runs = [(label, len(list(group))) for label, group in groupby(labels)]
    longest: dict[int, int] = {}
    for label, length in runs:
        longest[label] = max(length, longest.get(label, 0))
    cleaned = [
        label if length == longest[label] > 1 else -1
        for label, length in runs
        for _ in range(length)
    ]
    position = 0
    for label, group in groupby(list(cleaned)):
        length = len(list(group))
        stop = position + length
        if label == -1:
            left = _run_length(cleaned[:position][::-1])
            right = _run_length(cleaned[stop:])
            if left or right:
                neighbor = cleaned[position - 1] if left >= right else cleaned[stop]
                cleaned[position:stop] = [neighbor] * length
        position = stop
    return [len(list(group)) for _, group in groupby(cleaned)]


def _run_length(labels: list[int]) -> int:
    """Length of the run at the start of the list."""
    return next((len(list(group)) for _, group in groupby(labels)), 0)


def _averages(tokens: Tensor, still: list[tuple[slice, NDArray[np.int64]]]) -> Tensor:
    """Averages of static positions over the frames of their scene, in scene order."""
    tokens_per_frame, dim = tokens.shape[1:]
    none = np.empty(0, dtype=np.int64)
    starts = [none, *(at + span.start * tokens_per_frame for span, at in still)]
    lengths = [none, *(np.full(len(at), span.stop - span.start) for span, at in still)]
    flat = tokens.reshape(-1, dim)
    return frame_means(flat, np.concatenate(starts), np.concatenate(lengths), tokens_per_frame)


def _filled(budget: list[int]) -> list[int]:
    """Flat indices of the clusters in a (frames, largest number of clusters) table."""
    widest = max(budget)
    return [row * widest + column for row, count in enumerate(budget) for column in range(count)]


def _cluster(
    points: Iterable[Tensor],
    spatial: Tensor,
    budget: list[int],
    wanted: Tensor,
    filled: Tensor,
    starts: Tensor,
) -> Terms:
    """Cluster tokens of every frame by density; a cluster becomes the plain average of its tokens.

    Args:
        points: Blocks of (f, M, D) tokens of consecutive frames, any float dtype; F frames in
            total.
        spatial: (M,) spatial positions of the tokens.
        budget: Number of clusters of every frame.
        wanted: `budget` as a tensor on the device.
        filled: `_filled(budget)` on the device.
        starts: (F, 1) flat positions of the frames' first tokens.
    """
    num_frames, num_points, widest = len(budget), len(spatial), max(budget)
    distances = torch.cat([squared_distances(part).div_(part.shape[2]) for part in points])
    centers = density_peaks(distances, widest, NUM_NEIGHBORS, include_self=True)
    columns = torch.arange(widest, device=spatial.device)
    wanted = wanted[:, None]
    centers = centers.masked_fill(columns >= wanted, num_points).sort(dim=1).values
    labels = assign_to_centers(distances, centers)
    offsets = torch.arange(num_frames, device=spatial.device)[:, None]
    weights, _ = mean_weights((labels + offsets * widest).flatten(), num_frames * widest)
    positions = spatial[centers.clamp(max=num_points - 1)] + starts
    targets = positions.gather(1, labels).masked_fill_(wanted == 0, NOWHERE)
    return Terms(
        positions.flatten()[filled],
        targets.flatten(),
        (spatial + starts).flatten(),
        weights,
        num_nowhere=budget.count(0) * num_points,
    )
