"""Greedy MAP inference of a determinantal point process (DPP), for many groups at once.

The kernel of a group is L[i, j] = q_i s_ij q_j with similarities s and qualities q. The algorithm
is the incremental Cholesky decomposition of Chen, Zhang and Zhou, "Fast Greedy MAP Inference for
Determinantal Point Process", NeurIPS 2018, Algorithm 1, https://arxiv.org/abs/1709.05135.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Below this gain the chosen items span all directions, and further gains are rounding errors.
MIN_GAIN = 1e-6
# `greedy_map_of_vectors` chooses among so many items at a time, and opens so many.
_CANDIDATES, _OPENED = 256, 1024


def greedy_map(similarity: Tensor, quality: Tensor, count: int) -> Tensor:
    """Choose items one by one, each with the largest gain of the kernel's log determinant.

    Ties go to the lowest position. Once the best gain of a group is at most `MIN_GAIN`, its
    remaining places go to the items of highest quality. There is no device synchronisation.

    Args:
        similarity: (G, N, N) float64, symmetric and positive semidefinite.
        quality: (B, G, N) float64 factors, not negative: B sets of qualities for the same
            similarities.
        count: Number of items to choose in every group, in [1, N].

    Returns:
        (B, G, count) int64 positions in the order of selection.
    """
    return _pivoted_cholesky(similarity, quality, count)[0]


def _pivoted_cholesky(similarity: Tensor, quality: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The choices of `greedy_map` and their (B, G, count, N) Cholesky rows."""
    num_sets, num_groups, num_items = quality.shape
    group = torch.arange(num_groups, device=quality.device).expand(num_sets, -1)
    gains = quality.square() * similarity.diagonal(dim1=1, dim2=2)
    fallback = quality.clone()
    rows = quality.new_zeros(num_sets, num_groups, count, num_items)
    chosen = group.new_empty(num_sets, num_groups, count)
    independent = torch.ones_like(group, dtype=torch.bool)
    infinite = quality.new_full((), torch.inf)
    for step in range(count):
        largest, best = gains.max(dim=-1)
        independent &= largest > MIN_GAIN
        best = torch.where(independent, best, fallback.argmax(dim=-1))
        chosen[..., step] = best
        at = best[..., None]
        row = similarity[group, best] * quality * quality.gather(-1, at)
        if step:
            earlier = rows[:, :, :step]
            column = earlier.gather(-1, at[..., None].expand(-1, -1, step, 1))
            row -= (column.transpose(-1, -2) @ earlier)[..., 0, :]
        row *= torch.where(independent, largest, infinite).rsqrt()[..., None]
        rows[:, :, step] = row
        gains -= row.square()
        gains.scatter_(-1, at, -torch.inf)
        fallback.scatter_(-1, at, -torch.inf)
    return chosen, rows


def greedy_map_of_vectors(units: Tensor, quality: Tensor, count: int) -> Tensor:
    """`greedy_map` of one large group, without the matrix of its similarities.

    The Cholesky row of a choice is the product of all vectors with a unit vector: the part of the
    choice that is orthogonal to earlier ones. Gains only fall, which saves two kinds of work. Items
    are opened in the order of their first gains, and rows are computed for open items only. The
    next choices are made among the open items with the largest gains, as long as one of them gains
    more than the best item beside them did before; then the rows of all these choices are computed
    at once. The device is waited for a few times per round, and not for every choice.

    Args:
        units: (N, D) float64 vectors whose inner products are the similarities.
        quality: (N,) float64 factors, not negative.
        count: Number of items to choose, in [1, N].

    Returns:
        (count,) int64 positions in the order of selection.
    """
    gains, positions = (quality.square() * units.square().sum(dim=1)).sort(
        descending=True, stable=True
    )
    vectors = units[positions].mul_(quality[positions, None])
    rows, basis = quality.new_zeros(count, len(units)), quality.new_zeros(count, units.shape[1])
    chosen = torch.empty(count, dtype=torch.int64, device=units.device)
    done = num_open = 0
    number = _CANDIDATES
    while done < count:
        next_gain = gains[num_open : num_open + 1]
        if len(next_gain) and not (gains[:num_open] > next_gain).any():
            opened = slice(num_open, num_open + _OPENED)
            torch.mm(basis[:done], vectors[opened].T, out=rows[:done, opened])
            gains[opened] -= rows[:done, opened].square().sum(dim=0)
            num_open = min(opened.stop, len(units))
            continue
        ranked = gains[:num_open].argsort(descending=True, stable=True)
        candidates, others = ranked[:_CANDIDATES].sort().values, ranked[_CANDIDATES:][:1]
        among, before = vectors[candidates], rows[:done, candidates]
        kernel = among @ among.T - before.T @ before
        kernel.diagonal().copy_(gains[candidates])
        # About as many choices are valid as in the last round.
        steps = min(len(candidates), count - done, 8 + 2 * number)
        (((order,),), ((factor,),)) = _pivoted_cholesky(
            kernel[None], torch.ones_like(kernel[None, :1]), steps
        )
        largest = factor.gather(1, order[:, None]).square()
        valid = (largest > MIN_GAIN).all(dim=1)
        # The first choice is the best of all items.
        valid[1:] &= (largest[1:] > torch.cat([gains[others], next_gain])).all(dim=1)
        number = int(valid.cumprod(dim=0).sum())
        if not number:  # the chosen items span all directions
            fallback = quality.index_fill(0, positions[chosen[:done]], -torch.inf)
            ranked = fallback.argsort(descending=True, stable=True)
            return torch.cat([positions[chosen[:done]], ranked[: count - done]])
        order, found = order[:number], slice(done, done + number)
        left = among[order] - before[:, order].T @ basis[:done]
        basis[found] = torch.linalg.solve_triangular(factor[:number, order].T, left, upper=False)
        torch.mm(basis[found], vectors[:num_open].T, out=rows[found, :num_open])
        gains[:num_open] -= rows[found, :num_open].square().sum(dim=0)
        gains.index_fill_(0, candidates[order], -torch.inf)
        chosen[found], done = candidates[order], found.stop
    return positions[chosen]
