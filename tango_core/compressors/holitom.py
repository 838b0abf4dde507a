"""HoliTom: average and cluster what stays the same over time, keep what is salient of the rest.

Paper: "HoliTom: Holistic Token Merging for Fast Video Large Language Models", Shao et al., NeurIPS
2025, Section 3, https://arxiv.org/abs/2505.21334. This is the part before the language model ("w/o
M"); `inner={"name": "holitom-merge", "layer": 18, "retention": 0.5}` adds the part inside it. Its
window search is also Tango's.

The release emits a segment's static tokens before the dynamic ones of its first frame on models
with one newline, and in raster order on the others; here tokens are always by position. Its
densities carry random noise, which decides which token stays where a group has a single cluster:
here the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tango_core.compressors.hybrid import OuterStep
from tango_core.compressors.options import raise_if_below, raise_if_outside
from tango_core.compressors.ordering import in_order
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.merging import cluster_means
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.segmentation import adjacent_similarity, static_segments
from tango_core.types import CompressedVideo, VisualFeatures


@dataclass(frozen=True)
class HoliTom(OuterStep):
    """Salient tokens where the picture moves, merged clusters of frame averages where it does not.

    Averaging static positions over a segment already saves tokens; one share, retention * T * L /
    distinct tokens (at most 1), then applies to the whole clip: ceil(share * m) of the m dynamic
    tokens of every frame, and round(share * S) of the S static positions of every segment. A static
    clip has L distinct tokens, so it may keep less than asked for.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1]; with `inner`, its average over the
            layers.
        tau: Cosine above which a position counts as unchanged between two frames, in [-1, 1];
            `None` is 0.65 for a retention up to 0.1 and 0.8 above, as in the published scripts.
        beta: Weight of a cluster's centre against the mean of its other members, in [0, 1].
        num_neighbors: Neighbours that make a density, the token itself included; never more than
            there are clusters.
        inner: In-LLM step that follows, `{"name": "holitom-merge", "layer": 18, "retention": 0.5}`;
            `build_method` adds `num_layers` (28 if absent), from which `outer_retention` derives
            the share kept here.
    """

    tau: float | None = None
    beta: float = 0.6
    num_neighbors: int = 7
    inner: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        raise_if_outside(self, -1, 1, "tau")
        raise_if_outside(self, 0, 1, "beta")
        raise_if_below(self, 1, "num_neighbors")
        _ = self.outer_retention

    @property
    def needs(self) -> frozenset[str]:
        """Received attention ranks dynamic tokens."""
        return frozenset({"attention"})

    def _compress(self, features: VisualFeatures) -> CompressedVideo:
        """Plan on the host, rank what moves in a frame, cluster what is still in a segment."""
        assert features.attention is not None
        tokens = features.tokens
        num_frames, tokens_per_frame, _ = tokens.shape
        unchanged = (adjacent_similarity(tokens) > self.resolved_tau).cpu().numpy()
        lengths = static_segments(unchanged)
        still = _static_positions(unchanged, lengths)
        saved = sum(
            (len(spatial) * (length - 1)) for spatial, length in zip(still, lengths, strict=True)
        )
        total = num_frames * tokens_per_frame
        share = min(self.outer_retention / ((total - saved) / total), 1)

        dynamic = np.ones((num_frames, tokens_per_frame), dtype=bool)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        for start, length, spatial in zip(starts, lengths, still, strict=True):
            dynamic[start : start + length, spatial] = False
        kept = [self._salient(features.attention, dynamic, share)]
        values = [tokens.flatten(0, 1)[kept[0]]]
        clusters = [round(len(spatial) * share) for spatial in still]
        if not len(kept[0]) and not any(clusters):
            clusters[int(np.argmax([len(spatial) for spatial in still]))] = 1
        for start, length, spatial, num_clusters in zip(
            starts, lengths, still, clusters, strict=True
        ):
            if num_clusters:
                at = torch.from_numpy(spatial).to(tokens.device)
                centers, merged = self._cluster(tokens[start : start + length], at, num_clusters)
                kept.append(start * tokens_per_frame + centers)
                values.append(merged.to(tokens.dtype))
        return in_order(kept, values, features)

    def _salient(self, attention: Tensor, dynamic: np.ndarray, share: float) -> Tensor:
        """Flat positions of the ceil(share * m) most attended of every frame's m dynamic tokens."""
        counts = [math.ceil(count * share) for count in dynamic.sum(axis=1).tolist()]
        mask = torch.from_numpy(dynamic).to(attention.device)
        ranked = rank_descending(attention.float().masked_fill(~mask, -torch.inf))
        return take_ranked(ranked, counts)

    def _cluster(self, frames: Tensor, spatial: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
        """(C,) of `spatial`, the clusters' centres, and (C, D) merged tokens."""
        points = frames[:, spatial].float().mean(dim=0)
        distances = squared_distances(points[None]) / points.shape[1]
        neighbors = min(self.num_neighbors, num_clusters)
        centers = density_peaks(distances, num_clusters, neighbors, include_self=True)
        centers = centers.sort(dim=1).values
        labels = assign_to_centers(distances, centers)[0]
        members = torch.ones_like(labels, dtype=torch.bool).index_fill_(0, centers[0], False)
        means, counts = cluster_means(points, labels, num_clusters, members=members)
        own = points[centers[0]]
        blended = self.beta * own + (1 - self.beta) * means
        return spatial[centers[0]], torch.where(counts[:, None] > 0, blended, own)


def _static_positions(unchanged: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    """Positions that stay unchanged throughout each segment; none in a segment of one frame."""
    spatial, start = [], 0
    for length in lengths:
        pairs = unchanged[start : start + length - 1]
        spatial.append(np.flatnonzero(pairs.all(axis=0)) if length > 1 else np.arange(0))
        start += length
    return spatial
