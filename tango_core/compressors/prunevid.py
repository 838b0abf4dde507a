"""PruneVid: average static positions over a scene, then cluster them and every frame's rest.

Paper: "PruneVid: Visual Token Pruning for Efficient Video Large Language Models", Huang et al.,
Findings of ACL 2025, Section 3.2, https://arxiv.org/abs/2412.16117. This is the part before the
language model; the release (Visual-AI/PruneVid) goes on to prune by attention in layer 10.

The release clusters every group of more than 14 tokens to half its size, without a budget; here
the groups share round(retention * T * L) tokens, so that it can be compared with the others at
equal cost. Further differences: a scene of one frame is all dynamic (the release divides 0 by 0
there), short clips need no 7 frames, densities carry no random noise, and a merged token stands at
its cluster's centre instead of in the order of clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tango_core.combination import Combination, Drawing
from tango_core.compressors.base import Compressor, num_kept
from tango_core.compressors.options import raise_if_outside
from tango_core.compressors.terms import NOWHERE, Terms, in_order, over_frames
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import apportion
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.merging import mean_weights
from tango_core.types import VisualFeatures
from tango_core.wrong_options import raise_if_no_share

NUM_NEIGHBORS = 7


@dataclass(frozen=True)
class PruneVid(Compressor):
    """Plain averages of clusters: static positions over a scene, and dynamic tokens in every frame.

    Keeps round(retention * T * L) tokens, divided over the groups by their size (largest
    remainder). Averaging static positions may leave fewer distinct tokens than that, as in a frozen
    clip; then all of them are kept.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1].
        tau: Mean cosine between the frames of a scene above which a position is static, in [-1, 1].
        temporal_ratio: Clusters of frames as a share of the frames, in (0, 1].
        budget: `"exact"`, the only one: said so that a recipe may ask every method for it.
    """

    added_options: ClassVar[Mapping[str, Any]] = {"budget": "exact"}

    tau: float = 0.8
    temporal_ratio: float = 0.25
    budget: Literal["exact"] = "exact"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, -1, 1, "tau")
        raise_if_no_share("temporal_ratio", self.temporal_ratio)

    def _plan(self, features: VisualFeatures) -> Combination:
        """Find scenes and static positions, set budgets, then cluster scene by scene."""
        tokens = features.tokens
        num_frames, tokens_per_frame, _ = tokens.shape
        lengths = self._scenes(tokens)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        spans = [slice(s, s + n) for s, n in zip(starts, lengths, strict=True)]
        static = torch.stack([self._static(tokens[span]) for span in spans]).cpu().numpy()
        sizes = np.concatenate(
            [
                [still, *[tokens_per_frame - still] * length]
                for still, length in zip(static.sum(axis=1), lengths, strict=True)
            ]
        )
        wanted = num_kept(num_frames * tokens_per_frame, self.retention)
        counts = iter(apportion(wanted, sizes * min(wanted / sizes.sum(), 1), sizes).tolist())
        parts: list[Terms] = []
        for span, still in zip(spans, static, strict=True):
            scene = tokens[span]
            budgets = [next(counts)], [next(counts) for _ in range(len(scene))]
            for mask, budget, is_still in ((still, budgets[0], True), (~still, budgets[1], False)):
                if not any(budget):
                    continue
                spatial = torch.from_numpy(np.flatnonzero(mask)).to(tokens.device)
                frames = _average(scene, spatial) if is_still else scene
                terms = _cluster(frames, spatial, budget, span.start * tokens_per_frame)
                length = len(scene) if is_still else 1
                parts.append(over_frames(terms, length, tokens_per_frame))
        cells = np.repeat(static, lengths, axis=0)
        return in_order(features, parts, Drawing(tuple(lengths), torch.from_numpy(cells)))

    def _scenes(self, tokens: Tensor) -> list[int]:
        """Lengths of the scenes, from clusters of the frames' mean tokens."""
        frames = tokens.mean(dim=1, dtype=torch.float32)[None]
        num_clusters = max(1, int(len(tokens) * self.temporal_ratio))
        distances = squared_distances(frames)
        scaled = distances / frames.shape[-1]
        centers = density_peaks(scaled, num_clusters, NUM_NEIGHBORS, include_self=True)
        return contiguous_scenes(assign_to_centers(distances, centers)[0].tolist())

    def _static(self, scene: Tensor) -> Tensor:
        """(L,) bool, whether a position is alike in all frames of a scene; never in one frame."""
        length = len(scene)
        if length == 1:
            return torch.zeros(scene.shape[1], dtype=torch.bool, device=scene.device)
        # The sum of all pairwise cosines is the squared length of the sum of unit vectors.
        total = torch.zeros(scene.shape[1:], device=scene.device)
        for frame in scene:
            tokens = frame.float()
            lengths = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp_(min=1e-12)
            total.addcmul_(tokens, 1 / lengths)
        pairs: Tensor = torch.linalg.vector_norm(total, dim=-1).square() - length
        return (pairs / (length * (length - 1))).gt(self.tau)


def contiguous_scenes(labels: list[int]) -> list[int]:
    """Turn clusters of frames into contiguous scenes.

    Of every cluster only its longest run stays (several if equally long), and clusters without a
    run of two frames dissolve. What is left over joins the longer of the runs beside it, the left
    one if they are equally long.

    Args:
        labels: Cluster of every frame.

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
    """Length of the run at the start."""
    return next((len(list(group)) for _, group in groupby(labels)), 0)


def _average(scene: Tensor, spatial: Tensor) -> Tensor:
    """(1, L, D) float32 means over the frames of (F, L, D) at some positions; 0 elsewhere."""
    total = torch.zeros(1, *scene.shape[1:], device=scene.device)
    for frame in scene:
        total[0].index_add_(0, spatial, frame.index_select(0, spatial).float())
    return total.div_(len(scene))


def _cluster(frames: Tensor, spatial: Tensor, budget: list[int], start: int) -> Terms:
    """Cluster some tokens of every frame by density; a cluster is its plain average.

    Args:
        frames: (F, L, D), any float dtype.
        spatial: (M,) spatial positions of the tokens.
        budget: Clusters of every frame.
        start: Flat position of the first frame's first token.
    """
    num_frames, tokens_per_frame, dim = frames.shape
    num_points, widest = len(spatial), max(budget)
    # A frame at a time, so that no copy of all the tokens to cluster is made.
    parts = row_blocks(num_frames, tokens_per_frame * dim, frames.device)
    distances = torch.cat(
        [squared_distances(frames[part].index_select(1, spatial)) for part in parts]
    )
    centers = density_peaks(distances.div_(dim), widest, NUM_NEIGHBORS, include_self=True)
    columns = torch.arange(widest, device=spatial.device)
    wanted = torch.tensor(budget, device=spatial.device)[:, None]
    centers = centers.masked_fill(columns >= wanted, num_points).sort(dim=1).values
    labels = assign_to_centers(distances, centers)
    offsets = torch.arange(num_frames, device=spatial.device)[:, None]
    weights, _ = mean_weights((labels + offsets * widest).flatten(), num_frames * widest)
    firsts = offsets * tokens_per_frame + start
    positions = spatial[centers.clamp(max=num_points - 1)] + firsts
    filled = torch.cat([torch.arange(count) + row * widest for row, count in enumerate(budget)])
    targets = positions.gather(1, labels).masked_fill_(wanted == 0, NOWHERE)
    return Terms(
        positions.flatten()[filled.to(spatial.device)],
        targets.flatten(),
        (spatial + firsts).flatten(),
        weights,
        num_nowhere=budget.count(0) * num_points,
    )
