"""Rank correlation of two lists, and separation of two groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tango_core.analysis.sinks import frame_ranks


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rho; ties get their mean rank.

    Args:
        first: Numbers.
        second: Equally many numbers.

    Returns:
        In [-1, 1]; `None` for fewer than three pairs, or if all numbers of a list are equal.
    """
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    both = torch.tensor([list(first), list(second)], dtype=torch.float64)
    return float(torch.corrcoef(frame_ranks(both).double())[0, 1].clamp(-1, 1))


def separation(of_right: Sequence[float], of_wrong: Sequence[float]) -> float | None:
    """Probability that a number of the first group exceeds one of the second, ties counted half.

    This is the area under the ROC curve; 0.5 means that the values do not separate the groups.

    Returns:
        In [0, 1]; `None` if a group is empty.
    """
    if not of_right or not of_wrong:
        return None
    together = torch.tensor([[*of_right, *of_wrong]], dtype=torch.float64)
    ranks = len(together[0]) + 1 - frame_ranks(together).double()[0]  # 1 for the smallest
    number = len(of_right)
    above = float(ranks[:number].sum()) - number * (number + 1) / 2
    return above / (number * len(of_wrong))
