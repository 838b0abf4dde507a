"""What Tango decides by clusters: which candidates are picked, and what is merged into what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tango_core.ops.clustering import assign_to_centers, density_peaks
from tango_core.ops.merging import member_weights

if TYPE_CHECKING:
    from tango_core.compressors.tango.method import Tango


def one_per_cluster(
    distances: Tensor, salient: Tensor, candidates: Tensor, num_salient: int, num_neighbors: int
) -> Tensor:
    """Ranks of the most salient candidate of every cluster.

    Args:
        distances: (B, C, C) squared, between the candidates of a part by descending score.
        salient: (B,) clusters of every part.
        candidates: (B,) candidates of every part; what comes behind them takes no part.
        num_salient: K, the most clusters of a part.
        num_neighbors: Neighbours that make a density.

    Returns:
        (B, K) int64 in [0, C); without meaning from the part's number of clusters on.
    """
    num_candidates = distances.shape[1]
    ranks = torch.arange(num_candidates, device=distances.device)
    members = ranks < candidates[:, None]
    order = density_peaks(distances, num_salient, num_neighbors, members=members)
    slots = torch.arange(num_salient, device=distances.device)
    centers = order.masked_fill(slots >= salient[:, None], num_candidates)
    labels = assign_to_centers(distances, centers)
    others = (labels[:, None] != slots[:, None]) | ~members[:, None]
    return ranks.expand(others.shape).masked_fill(others, num_candidates - 1).amin(dim=-1)


def merge_into_anchors(
    distances: Tensor,
    rows: Tensor,
    members: Tensor,
    merged: Tensor,
    keeps_all: Tensor,
    num_centers: int,
    options: Tango,
    nowhere: int,
) -> tuple[Tensor, Tensor]:
    """Cluster the members of every group.

    Args:
        distances: (P, M, M) squared.
        rows: (P, M) flat positions of the points.
        members: (P, M) bool, the points that take part.
        merged: (P,) anchors of every group.
        keeps_all: (P,) bool, whether every member is an anchor.
        num_centers: The most anchors of a group.
        options: Of the method.
        nowhere: Stands for no position.

    Returns:
        (P, M) the flat position every point is written to, and its weight there.
    """
    num_groups, num_points = rows.shape
    order = density_peaks(distances, num_centers, options.num_neighbors, members=members)
    ranks = torch.arange(num_centers, device=rows.device)
    chosen = order.masked_fill(ranks >= merged[:, None], num_points)
    centers = chosen.sort(dim=-1).values
    labels = assign_to_centers(distances, centers)
    weight = member_weights(labels, centers, members, options.beta)
    writers = centers
    if options.legacy_writeback:
        writers = torch.where(keeps_all[:, None], centers, chosen)
    padded = torch.cat([rows, rows.new_full((num_groups, 1), nowhere)], dim=1)
    return padded.gather(1, writers.gather(1, labels)), weight
