"""Apportion whole tokens in proportion to weights, with upper bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Larger than the rounding error of a product, smaller than any fraction of a token that matters.
_ROUNDING = 1e-9


def floor_share(count: int, share: float) -> int:
    """Round `count * share` down, ignoring floating-point error in products that should be whole.

    In floating point 49 * (4 / 49) is 3.9999999999999996 and 100 * 0.29 is 28.999999999999996.
    """
    return math.floor(count * share + _ROUNDING)


def ceil_share(count: int, share: float) -> int:
    """Round `count * share` up, ignoring floating-point error as `floor_share` does."""
    return math.ceil(count * share - _ROUNDING)


def fill(
    amount: float, weights: NDArray[np.float64], capacity: NDArray[np.floating[Any]]
) -> NDArray[np.float64]:
    """Divide an amount in proportion to weights; shares beyond a capacity go to the others.

    Args:
        amount: The amount to divide.
        weights: (n,) positive.
        capacity: (n,) upper bounds.

    Returns:
        (n,) shares; their sum is the smaller of `amount` and the total capacity.
    """
    shares = np.zeros(len(weights))
    is_open = np.ones(len(weights), dtype=bool)
    while is_open.any():
        level = (amount - shares[~is_open].sum()) / weights[is_open].sum()
        over = is_open & (weights * level >= capacity)
        if not over.any():
            shares[is_open] = weights[is_open] * level
            break
        shares[over] = capacity[over]
        is_open &= ~over
    return shares


def apportion(
    total: int, quotas: NDArray[np.floating[Any]], capacity: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Turn fractional quotas into whole numbers by largest remainder.

    Args:
        total: Sum of the result, unless the capacities are smaller.
        quotas: (n,) not negative, adding up to about `total`.
        capacity: (n,) upper bounds.

    Returns:
        (n,) whole numbers; equal remainders go to the lowest index first.
    """
    counts: NDArray[np.int64] = np.floor(quotas + 1e-9).astype(np.int64).clip(max=capacity)
    while (missing := min(total, int(capacity.sum())) - int(counts.sum())) > 0:
        remainders = np.where(counts < capacity, quotas - counts, -np.inf)
        order = np.argsort(-np.round(remainders, 9), kind="stable")[:missing]
        counts[order[np.isfinite(remainders[order])]] += 1
    return counts


def evenly(total: int, parts: int) -> list[int]:
    """Divide `total` over parts in order, as evenly as whole numbers allow, the larger ones spread.

    Part i gets floor((i + 1) * total / parts) - floor(i * total / parts).
    """
    bounds = [index * total // parts for index in range(parts + 1)]
    return [stop - start for start, stop in pairwise(bounds)]


def group_counts(num_groups: int, size: int, retention: float, budget: str) -> list[int]:
    """Number of items to keep of every group.

    Args:
        num_groups: Number of groups.
        size: Items per group.
        retention: Share to keep, in (0, 1].
        budget: `"official"`: round(retention * size), at least 1, of every group. `"exact"`:
            round(retention * num_groups * size), at least 1, in all, spread evenly.
    """
    if budget == "official":
        return [min(size, max(1, round(retention * size)))] * num_groups
    return evenly(max(1, round(retention * (num_groups * size))), num_groups)


def first_of_groups(chosen: Tensor, counts: Sequence[int]) -> Tensor:
    """The first `counts[g]` entries of every group g of (..., G, K) values, as (..., n) values."""
    wanted = torch.arange(chosen.shape[-1]) < torch.tensor(counts)[:, None]
    return chosen[..., wanted.to(chosen.device)]
