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
from itertools import accumulate, groupby
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tango_core.combination import Combination, Drawing
from tango_core.compressors.base import Compressor, num_kept, read_checked
from tango_core.compressors.options import raise_if_outside
from tango_core.compressors.terms import NOWHERE, Terms, in_order, over_frames
from tango_core.ops.blocks import row_blocks
from tango_core.ops.budgets import apportion
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.merging import mean_weights
from tango_core.ops.transfer import upload_together
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

    checks_in_plan: ClassVar[bool] = True
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
        labels = self._frame_clusters(tokens)
        if tokens.device.type == "cpu":
            (found,) = read_checked(features, self.needs, labels)
            lengths = contiguous_scenes(found.tolist())
            means = np.stack([_mean_cosine(tokens[span]).numpy() for span in _spans(lengths)])
        else:
            # Scenes follow on the host: with all cosines at hand it reads only once.
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
        # All at once: a copy for every scene would be a copy too many.
        arrays = [part for _, _, at, budget in groups for part in (at, budget, _filled(budget))]
        uploaded = iter(upload_together(arrays, tokens.device))
        parts: list[Terms] = []
        for span, is_still, _, budget in groups:
            spatial, clusters, filled = next(uploaded), next(uploaded), next(uploaded)
            scene, start = tokens[span], span.start * tokens_per_frame
            frames = _average(scene, spatial) if is_still else scene
            terms = _cluster(frames, spatial, budget, clusters, filled, start)
            parts.append(over_frames(terms, len(scene) if is_still else 1, tokens_per_frame))
        cells = np.repeat(static, lengths, axis=0)
        return in_order(features, parts, Drawing(tuple(lengths), torch.from_numpy(cells)))

    def _frame_clusters(self, tokens: Tensor) -> Tensor:
        """(T,) int64 cluster of every frame, by its mean token."""
        frames = tokens.mean(dim=1, dtype=torch.float32)[None]
        num_clusters = max(1, int(len(tokens) * self.temporal_ratio))
        distances = squared_distances(frames)
        scaled = distances / frames.shape[-1]
        centers = density_peaks(scaled, num_clusters, NUM_NEIGHBORS, include_self=True)
        return assign_to_centers(distances, centers)[0]


def _spans(lengths: list[int]) -> list[slice]:
    """Frames of every scene."""
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
    """(L, T, T) float32 cosines between all frames, place by place: 0.8 MB for 32 of 196."""
    units = F.normalize(tokens.float(), dim=-1).transpose(0, 1)
    return units @ units.mT


def _mean_of_pairs(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """(L,) mean over the pairs of (L, F, F) cosines; -1 where there is no pair."""
    length = cosines.shape[1]
    if length == 1:
        return np.full(len(cosines), -1, dtype=np.float32)
    pairs: NDArray[np.float32] = cosines.sum(axis=(1, 2)) - np.float32(length)
    return pairs / np.float32(length * (length - 1))


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
    total = torch.zeros(len(spatial), scene.shape[2], device=scene.device)
    for frame in scene:
        total += frame.index_select(0, spatial).float()
    everywhere = torch.zeros(1, *scene.shape[1:], device=scene.device)
    everywhere[0].index_copy_(0, spatial, total.div_(len(scene)))
    return everywhere


def _filled(budget: list[int]) -> list[int]:
    """Flat places of the clusters in a table of frames by the largest number of clusters."""
    widest = max(budget)
    return [row * widest + column for row, count in enumerate(budget) for column in range(count)]


def _cluster(
    frames: Tensor, spatial: Tensor, budget: list[int], wanted: Tensor, filled: Tensor, start: int
) -> Terms:
    """Cluster some tokens of every frame by density; a cluster is its plain average.

    Args:
        frames: (F, L, D), any float dtype.
        spatial: (M,) spatial positions of the tokens.
        budget: Clusters of every frame.
        wanted: The same on the device.
        filled: `_filled(budget)` on the device.
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
    wanted = wanted[:, None]
    centers = centers.masked_fill(columns >= wanted, num_points).sort(dim=1).values
    labels = assign_to_centers(distances, centers)
    offsets = torch.arange(num_frames, device=spatial.device)[:, None]
    weights, _ = mean_weights((labels + offsets * widest).flatten(), num_frames * widest)
    firsts = offsets * tokens_per_frame + start
    positions = spatial[centers.clamp(max=num_points - 1)] + firsts
    targets = positions.gather(1, labels).masked_fill_(wanted == 0, NOWHERE)
    return Terms(
        positions.flatten()[filled],
        targets.flatten(),
        (spatial + firsts).flatten(),
        weights,
        num_nowhere=budget.count(0) * num_points,
    )
