"""HoliTom: average and cluster static regions, keep the salient tokens of dynamic ones.

Paper: "HoliTom: Holistic Token Merging for Fast Video Large Language Models", Shao et al., NeurIPS
2025, Section 3, https://arxiv.org/abs/2505.21334. This is the step before the language model ("w/o
M"); `inner={"name": "holitom-merge", "layer": 18, "retention": 0.5}` adds the step inside it. Its
window search is also Tango's.

The release emits a segment's static tokens before the dynamic ones of its first frame on models
with one newline, and in raster order on the others; here tokens are always ordered by position. It
adds random noise to densities, which decides which token stays if a group has a single cluster;
here it is the first.

SToP's release (`stop`) ranks dynamic tokens by attention minus sink scores, treats a position as
static if all its cosines plus `temporal` times its sink score exceed 0.8, and subtracts 0.3 times
the sink score from the score of a cluster's centre. It searches windows without sink scores, with
0.8 at every retention, and computes budgets from that search: it keeps fewer tokens than requested
if more positions become static, and more if `tau` is below 0.8. Here, except with `legacy`,
both tests use `tau` (default 0.8), and the budget counts the positions that are static. `legacy`
also subtracts the 0.3 if `spatial` is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tango_core.combination import Combination, Drawing, Terms, in_order, over_frames, unchanged
from tango_core.compressors.base import num_kept
from tango_core.compressors.hybrid import OuterStep
from tango_core.compressors.options import Cosine, Count, Ratio
from tango_core.compressors.stop import ANCHOR_PENALTY, Stop, checked_stop, stop_for
from tango_core.ops.budgets import apportion, ceil_share
from tango_core.ops.clustering import assign_to_centers, density_peaks, squared_distances
from tango_core.ops.finite import read_checked
from tango_core.ops.merging import frame_means, mean_weights
from tango_core.ops.saliency import rank_descending, take_ranked
from tango_core.ops.segmentation import adjacent_products, cosines, static_cells, static_segments
from tango_core.ops.transfer import upload_together
from tango_core.types import VisualFeatures

STOP_STRENGTHS = (0.04, 0.07)
STOP_TAU = 0.8  # the only value of SToP's release


@dataclass(frozen=True)
class HoliTom(OuterStep):
    """Salient tokens of dynamic regions, and merged clusters of averaged static positions.

    Averaging static positions over a segment already saves tokens; one share, retention * T * L /
    distinct tokens (at most 1), then applies to the whole clip: ceil(share * m) of the m dynamic
    tokens of every frame, and round(share * S) of the S static positions of every segment. A static
    clip has L distinct tokens, so it may keep fewer tokens than requested.

    Attributes:
        retention: Share of the tokens to keep, in (0, 1]; with `inner`, its average over the
            layers.
        tau: Cosine above which a position counts as unchanged between two frames, in [-1, 1];
            `None` is 0.65 for a retention up to 0.1 and 0.8 above, as in the published scripts.
        beta: Weight of a cluster's centre against the mean of its other members, in [0, 1].
        num_neighbors: Number of nearest neighbours of the density estimate, the token itself
            included; at most the number of clusters.
        inner: In-LLM step that follows, `{"name": "holitom-merge", "layer": 18, "retention": 0.5}`;
            `build_method` adds `num_layers` (28 if absent), from which `outer_retention` derives
            the share kept here.
        stop: Prevent sinks from being salient and make them static more often, `{"spatial": 0.04,
            "temporal": 0.07, "gamma": 1.1}` as published (tuned at 10 %); see `stop.py`. `None`
            disables it.
        budget: `"official"` rounds up in every frame; `"exact"` keeps round(retention * T * L)
            tokens by largest remainder, unless averaging static positions leaves fewer.
    """

    checks_in_plan: ClassVar[bool] = True
    added_options: ClassVar[Mapping[str, Any]] = {"stop": None, "budget": "official"}

    needs = frozenset({"attention"})

    tau: Cosine | None = None
    beta: Ratio = 0.6
    num_neighbors: Count = 7
    inner: Mapping[str, Any] | None = field(default=None, hash=False)
    stop: Mapping[str, Any] | None = field(default=None, hash=False)
    budget: Literal["official", "exact"] = "official"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stop is not None:
            object.__setattr__(self, "stop", checked_stop("holitom", self.stop, STOP_STRENGTHS))

    @property
    def resolved_tau(self) -> float:
        """`tau`, or the published value for the target retention and `stop`."""
        if self.stop is not None and self.tau is None:
            return STOP_TAU
        return super().resolved_tau

    def _plan(self, features: VisualFeatures) -> Combination:
        """Plan on the host, rank dynamic tokens per frame, cluster static ones per segment."""
        tokens, attention = features.tokens, features.signal("attention")
        tokens_per_frame = tokens.shape[1]
        stop = stop_for(self.stop, features)
        sinks = None if stop is None else stop.sink_scores(attention)
        scores = attention.float() if stop is None else stop.lowered(attention)
        squares, products = adjacent_products(tokens)
        similarity = raised = cosines(squares.sqrt(), products)
        tau = self.resolved_tau
        if stop is not None and sinks is not None:
            raised = similarity + stop.temporal * sinks
            tau = STOP_TAU if stop.legacy else tau
        is_still, is_raised = read_checked(
            features, self.needs, similarity > self.resolved_tau, raised > tau, squares=squares
        )
        lengths = static_segments(is_still)
        cells = static_cells(is_still, lengths)
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        still = found = _positions(cells, starts)
        if stop is not None:
            cells = static_cells(is_raised, lengths)
            still = _positions(cells, starts)
            found = found if stop.legacy else still
        dynamic, clusters = self._budgets(tokens_per_frame, lengths, still, found)

        is_static, *spots = upload_together([cells, *still], tokens.device)
        ranked = rank_descending(scores.masked_fill(is_static > 0, -torch.inf))
        parts = [unchanged(take_ranked(ranked, dynamic))]
        penalties = _penalties(stop, sinks)
        means = _averages(tokens, starts, lengths, still, clusters)
        first = 0
        for start, length, at, num_clusters in zip(starts, lengths, spots, clusters, strict=True):
            if num_clusters:
                points = means[first : first + len(at)]
                terms = self._cluster(points, at, start * tokens_per_frame, num_clusters, penalties)
                parts.append(over_frames(terms, length, tokens_per_frame))
                first += len(at)
        return in_order(features, parts, Drawing(tuple(lengths), torch.from_numpy(cells)))

    def _budgets(
        self,
        tokens_per_frame: int,
        lengths: list[int],
        still: list[np.ndarray],
        found: list[np.ndarray],
    ) -> tuple[list[int], list[int]]:
        """Number of dynamic tokens per frame and of clusters per segment, at least one in total.

        Args:
            tokens_per_frame: L.
            lengths: Number of frames of every segment.
            still: Number of static positions of every segment.
            found: Number of static positions used to compute the share.
        """
        total = tokens_per_frame * sum(lengths)
        saved = sum(len(at) * (n - 1) for at, n in zip(found, lengths, strict=True))
        share = min(self.outer_retention / ((total - saved) / total), 1)
        moving = [
            tokens_per_frame - len(at)
            for at, n in zip(still, lengths, strict=True)
            for _ in range(n)
        ]
        static = [len(at) for at in still]
        if self.budget == "exact":
            sizes = np.array(moving + static, dtype=np.int64)
            wanted = min(num_kept(total, self.outer_retention), int(sizes.sum()))
            counts = apportion(wanted, sizes * (wanted / sizes.sum()), sizes).tolist()
            return counts[: len(moving)], counts[len(moving) :]
        dynamic = [ceil_share(count, share) for count in moving]
        clusters = [round(count * share) for count in static]
        if not any(dynamic) and not any(clusters):
            clusters[int(np.argmax(static))] = 1
        return dynamic, clusters

    def _cluster(
        self,
        points: Tensor,
        spatial: Tensor,
        first: int,
        num_clusters: int,
        penalties: Tensor | None,
    ) -> Terms:
        """Cluster (S, D) averages over a segment's frames.

        Args:
            points: (S, D) averages.
            spatial: (S,) static positions.
            first: Flat position of the segment's first token.
            num_clusters: C.
            penalties: See `density_peaks`.
        """
        distances = squared_distances(points[None]).div_(points.shape[1])
        neighbors = min(self.num_neighbors, num_clusters)
        centers = density_peaks(
            distances,
            num_clusters,
            neighbors,
            include_self=True,
            penalties=None if penalties is None else penalties[None, spatial],
        )
        centers = centers.sort(dim=1).values
        labels = assign_to_centers(distances, centers)[0]
        members = torch.ones_like(labels, dtype=torch.bool).index_fill_(0, centers[0], False)
        weights, counts = mean_weights(labels, num_clusters, members)
        own = torch.full_like(counts, self.beta).masked_fill_(counts == 0, 1.0)
        weights = (weights * (1 - self.beta)).index_copy_(0, centers[0], own)
        kept = spatial[centers[0]] + first
        return Terms(kept, kept[labels], spatial + first, weights)


def _averages(
    tokens: Tensor,
    starts: list[int],
    lengths: list[int],
    still: list[np.ndarray],
    clusters: list[int],
) -> Tensor:
    """Averages of static positions, for all segments with clusters, in segment order."""
    tokens_per_frame, dim = tokens.shape[1:]
    used = [at if count else at[:0] for at, count in zip(still, clusters, strict=True)]
    firsts = [at + start * tokens_per_frame for at, start in zip(used, starts, strict=True)]
    runs = np.repeat(lengths, [len(at) for at in used])
    return frame_means(tokens.reshape(-1, dim), np.concatenate(firsts), runs, tokens_per_frame)


def _penalties(stop: Stop | None, sinks: Tensor | None) -> Tensor | None:
    """(L,) values to subtract from the scores of centres, or `None`."""
    if stop is None or sinks is None or not (stop.spatial or stop.legacy):
        return None
    return ANCHOR_PENALTY * sinks


def _positions(cells: np.ndarray, starts: list[int]) -> list[np.ndarray]:
    """Static positions of every segment, from (T, L) static cells and first frames."""
    return [np.flatnonzero(cells[start]) for start in starts]
