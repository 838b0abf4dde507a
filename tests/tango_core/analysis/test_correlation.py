"""Rank correlation."""

from __future__ import annotations

import pytest

from tango_core.analysis.correlation import rank_correlation


def test_what_cannot_be_known_is_none():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2, 3, 3], [1, 3, 2, 2]) == pytest.approx(1 / 3)
