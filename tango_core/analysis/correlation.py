"""Rank correlation of two lists, and separation of two groups."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import mannwhitneyu, spearmanr


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


def separation(of_right: Sequence[float], of_wrong: Sequence[float]) -> float | None:
    """Probability that a number of the first group exceeds one of the second, ties counted half.

    This is the area under the ROC curve; 0.5 means that the values do not separate the groups.

    Returns:
        In [0, 1]; `None` if a group is empty.
    """
    if not of_right or not of_wrong:
        return None
    return float(mannwhitneyu(of_right, of_wrong).statistic) / (len(of_right) * len(of_wrong))
