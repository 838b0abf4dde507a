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
# Kernel rows that `greedy_map_of_vectors` holds, and the choices it makes at a time.
_CANDIDATES, _STEPS = 96, 96


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


def greedy_map_of_vectors(units: Tensor, quality: Tensor, count: int) -> Tensor:
    """`greedy_map` of one large group, without the matrix of its similarities.

    Gains only fall, so the next choices are nearly always among the items with the largest gains:
    only their rows of the kernel are computed, and are kept until others have larger gains. When
    the best item is not among them, rows are computed again. The device is waited for then, and not
    for every choice.

    Args:
        units: (N, D) float64 vectors whose inner products are the similarities.
        quality: (N,) float64 factors, not negative.
        count: Number of items to choose, in [1, N].

    Returns:
        (count,) int64 positions in the order of selection.
    """
    num_items = len(units)
    gains = quality.square() * units.square().sum(dim=1)
    rows = quality.new_zeros(count, num_items)
    chosen = torch.empty(count, dtype=torch.int64, device=units.device)
    candidates, kernel, done = chosen[:0], rows[:0], 0
    infinite = gains.new_full((1,), torch.inf)
    while done < count:
        leading = gains.topk(min(_CANDIDATES, num_items)).indices
        new, kept = leading[~torch.isin(leading, candidates)], torch.isin(candidates, leading)
        computed = ((units[new] * quality[new, None]) @ units.T).mul_(quality)
        computed -= rows[:done, new].T @ rows[:done]
        candidates = torch.cat([candidates[kept], new])
        kernel = torch.cat([kernel[kept], computed])
        place = torch.full((num_items,), -1, device=units.device)
        place[candidates] = torch.arange(len(candidates), device=units.device)
        valid, number = gains.new_ones(1, dtype=torch.bool), chosen.new_zeros(1)
        for step in range(done, min(done + _STEPS, count)):
            largest, best = gains.max(dim=0, keepdim=True)
            valid = valid & (place[best] >= 0) & (largest > MIN_GAIN)
            row = kernel[place[best].clamp(min=0)] - rows[done:step, best].T @ rows[done:step]
            row *= torch.where(valid, largest, infinite).rsqrt()
            rows[step : step + 1] = row
            chosen[step : step + 1] = best
            gains -= row[0].square()
            gains.scatter_(0, best, torch.where(valid, -infinite, largest))
            number += valid
        found = slice(done, done + int(number))
        kernel -= rows[found, candidates].T @ rows[found]
        done = found.stop
        if found.start == done:  # the chosen items span all directions
            fallback = quality.index_fill(0, chosen[:done], -torch.inf)
            ranked = fallback.argsort(descending=True, stable=True)
            chosen[done:] = ranked[: count - done]
            break
    return chosen
