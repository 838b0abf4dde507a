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
    num_sets, num_groups, num_items = quality.shape
    group = torch.arange(num_groups, device=quality.device).expand(num_sets, -1)
    gains = quality.square() * similarity.diagonal(dim1=1, dim2=2)
    fallback = quality.clone()
    rows = quality.new_zeros(num_sets, num_groups, count, num_items)
    chosen = group.new_empty(num_sets, num_groups, count)
    independent = torch.ones_like(group, dtype=torch.bool)
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
        row *= torch.where(independent, largest, torch.inf).rsqrt()[..., None]
        rows[:, :, step] = row
        gains -= row.square()
        gains.scatter_(-1, at, -torch.inf)
        fallback.scatter_(-1, at, -torch.inf)
    return chosen
