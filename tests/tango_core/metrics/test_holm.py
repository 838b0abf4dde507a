"""Holm's correction."""

import pytest

from tango_core.metrics.comparison import holm_adjusted


def test_the_example_of_the_method():
    # 4 x 0.005, 3 x 0.01, then 0.03 and 0.04 stand behind 2 x 0.03.
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_single_test_is_not_corrected_and_none_is_fine():
    assert holm_adjusted([0.04]) == [0.04]
    assert holm_adjusted([]) == []
