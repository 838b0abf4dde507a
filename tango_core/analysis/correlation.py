"""Rank correlation of two lists."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import spearmanr


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
    return float(spearmanr(first, second).statistic)
