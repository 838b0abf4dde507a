"""Holm's correction of several p values for having been asked together."""

from __future__ import annotations

from collections.abc import Sequence

# An adjusted p value below it counts as a difference.
LEVEL = 0.05


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values: with those below a level rejected, a false one is among them that rarely.

    Step-down Bonferroni (Holm, "A simple sequentially rejective multiple test procedure",
    Scandinavian J. of Statistics 6, 1979): the i-th smallest of n is multiplied by n - i + 1, and
    none becomes smaller than one before it. The tests may depend on each other in any way.

    Args:
        p_values: In [0, 1], in any order.

    Returns:
        In [0, 1], in the same order.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
