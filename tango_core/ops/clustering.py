"""Density-peak clustering (DPC-KNN) and nearest-centre assignment, batched and deterministic.

Du et al. 2016, as used in Tango, HoliTom and FastVID. The three differ in the number of neighbours
of the density estimate and in the scale of distances. Their official codes add unseeded noise of
1e-6 to the densities; here ties are broken by position.

All steps use one matrix of squared distances per group. It is computed once and is bitwise
symmetric.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tango_core.ops.blocks import row_blocks, write_products

FAR = 1e38


def squared_distances(points: Tensor) -> Tensor:
    """Squared Euclidean distances between all points of a group, by matrix products.

    Args:
        points: (B, M, D), any float dtype.

    Returns:
        (B, M, M) float32: symmetric, 0 on the diagonal, never negative. This is the only buffer
        of that size.
    """
    points = points.float()
    num_groups, num_points, _ = points.shape
    distances = points.new_empty(num_groups, num_points, num_points)
    write_products(points, distances)
    products_to_distances(distances)
    return distances


def products_to_distances(products: Tensor, scale: Tensor | None = None) -> None:
    """Turn inner products into squared distances, in place.

    Args:
        products: (B, M, M), symmetric; the result is bitwise symmetric.
        scale: (B, M) factor of every point; scaling the products is cheaper than scaling the
            points. `None` for ones.
    """
    diagonal = products.diagonal(dim1=1, dim2=2)
    factors = torch.ones_like(diagonal) if scale is None else scale
    squares = diagonal * factors**2
    for rows in _row_blocks(products):
        block = products[:, rows]
        factor = factors[:, rows, None] * factors[:, None]
        sums = squares[:, rows, None] + squares[:, None]
        torch.addcmul(sums, block, factor, value=-2, out=block).clamp_(min=0)
    diagonal.zero_()


def _row_blocks(matrix: Tensor) -> list[slice]:
    """Rows of all groups that one elementwise pass processes."""
    num_groups, num_points, _ = matrix.shape
    return row_blocks(num_points, num_groups * num_points, matrix.device)


def _smallest(values: Tensor, count: int) -> Tensor:
    """(..., count) smallest values in ascending order."""
    if values.device.type == "cpu":
        # NumPy's partition is vectorised; torch.topk takes five times as long on rows this short.
        lowest = np.partition(values.detach().numpy(), count - 1, axis=-1)[..., :count]
        return torch.from_numpy(np.sort(lowest, axis=-1))
    return values.topk(count, dim=-1, largest=False, sorted=True).values


def density_peaks(
    distances: Tensor,
    num_centers: int,
    num_neighbors: int = 7,
    *,
    include_self: bool = False,
    members: Tensor | None = None,
    penalties: Tensor | None = None,
) -> Tensor:
    """Pick cluster centres from squared distances: dense points that are far from anything denser.

    rho = exp(-mean squared distance to the nearest neighbours), delta = distance to the nearest
    point of strictly larger rho, and centres have the largest rho * delta. The published delta of a
    point without a denser one, the largest distance of the group, always ranks it first; so does
    the infinity used here, without a pass over the matrix.

    Args:
        distances: (B, M, M) squared distances, symmetric, 0 on the diagonal.
        num_centers: C, at most M; groups with fewer members than C are filled up with non-members.
        num_neighbors: Number of nearest neighbours of the density estimate; 7 in Tango, 4 in
            FastVID, min(7, C) in HoliTom.
        include_self: Whether a point is its own first neighbour (HoliTom, FastVID) or not counted
            (Tango).
        members: (B, M) bool, points that take part; `None` for all.
        penalties: (B, M) float32 subtracted from the scores (SToP); the densest point then scores
            as published, with the largest distance of its group, instead of always coming first.

    Returns:
        (B, C) int64 by descending score; equal scores in ascending order of position.

    Raises:
        ValueError: If C exceeds M.
    """
    num_groups, num_points, _ = distances.shape
    if num_centers > num_points:
        raise ValueError(f"cannot pick {num_centers} centres among {num_points} points")
    first = 0 if include_self else 1
    wanted = min(num_neighbors + first, num_points)
    density = distances.new_empty(num_groups, num_points)
    score = torch.empty_like(density)
    others = None if members is None else ~members
    if others is not None:
        outside = torch.zeros_like(density).masked_fill_(others, torch.inf)
    blocks = _row_blocks(distances)
    for rows in blocks:
        block = distances[:, rows]
        if others is not None:
            block = block + outside[:, None]
        nearest = _smallest(block, wanted)[..., first:]
        found = nearest < torch.inf
        total = nearest.masked_fill(~found, 0.0).sum(dim=-1)
        density[:, rows] = torch.exp(-total / found.sum(dim=-1).clamp(min=1))
    if others is not None:
        density.masked_fill_(others, -1.0)
    for rows in blocks:
        # A comparison written as floats and an addition vectorise; torch.where is five times
        # slower.
        block = torch.empty_like(distances[:, rows])
        torch.le(density[:, None], density[:, rows, None], out=block)
        gap = torch.add(distances[:, rows], block, alpha=FAR, out=block).amin(dim=-1)
        score[:, rows] = (density[:, rows] * gap.sqrt()).masked_fill_(gap >= FAR, torch.inf)
    if penalties is not None:
        largest = _largest(distances, members).sqrt()[:, None]
        score = torch.where(score.isinf(), density * largest, score) - penalties
    if others is not None:
        score.masked_fill_(others, -torch.inf)
    return torch.sort(score, dim=-1, descending=True, stable=True).indices[:, :num_centers]


def _largest(distances: Tensor, members: Tensor | None) -> Tensor:
    """(B,) largest distance between the members of every group."""
    if members is None:
        return distances.amax(dim=(1, 2))
    present = members.float()
    return (distances * present[:, None] * present[..., None]).amax(dim=(1, 2))


def assign_to_centers(distances: Tensor, centers: Tensor) -> Tensor:
    """Assign every point to its nearest centre; ties go to the first centre.

    A centre always belongs to its own cluster, even if another centre is an exact copy of it, so no
    cluster is empty.

    Args:
        distances: (B, M, M) squared distances, symmetric.
        centers: (B, C) int64; entries equal to M are padding and get no points.

    Returns:
        (B, M) int64 indices into C.
    """
    num_groups, num_points, _ = distances.shape
    num_centers = centers.shape[1]
    padding = centers >= num_points
    rows = centers.clamp(max=num_points - 1)
    groups = torch.arange(num_groups, device=distances.device)[:, None]
    to_centers = distances[groups, rows].masked_fill_(padding[:, :, None], torch.inf)
    labels = to_centers.argmin(dim=1)
    # An extra column receives the writes of padding entries.
    own = torch.arange(num_centers, device=distances.device).expand_as(centers)
    padded = F.pad(labels, (0, 1))
    places = centers.masked_fill(padding, num_points)
    return padded.scatter_(1, places, own.masked_fill(padding, 0))[:, :num_points]
