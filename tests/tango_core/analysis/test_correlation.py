"""Rank correlation and separation against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, spearmanr

from tango_core.analysis.correlation import rank_correlation, separation


@pytest.mark.parametrize("levels", [3, 1000])
def test_both_agree_with_scipy_also_where_numbers_tie(levels):
    rng = np.random.default_rng(levels)
    first = rng.integers(0, levels, 40).astype(float)
    second = first + rng.integers(0, levels, 40)
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)
    area = mannwhitneyu(first[:15], second[15:]).statistic / (15 * 25)
    assert separation(first[:15].tolist(), second[15:].tolist()) == pytest.approx(area)


def test_what_cannot_be_known_is_none():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert separation([], [1.0]) is None
    assert separation([2.0], [1.0]) == 1
