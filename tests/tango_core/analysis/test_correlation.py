"""Rank correlation and separation against SciPy."""

from __future__ import annotations

from tango_core.analysis.correlation import rank_correlation, separation


def test_what_cannot_be_known_is_none():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert separation([], [1.0]) is None
    assert separation([2.0], [1.0]) == 1
