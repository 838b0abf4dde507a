"""Density peaks from the definition, for FastVID, HoliTom, PruneVid and SparseVLM."""

from __future__ import annotations

import torch
from torch import Tensor


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
