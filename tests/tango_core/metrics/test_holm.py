"""Holm's correction."""

import numpy as np
import pytest

from tango_core.metrics.comparison import holm_adjusted


def test_the_example_of_the_method():
    # 4 x 0.005, 3 x 0.01, then 0.03 and 0.04 stand behind 2 x 0.03.
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_a_single_test_is_not_corrected_and_none_is_fine():
    assert holm_adjusted([0.04]) == [0.04]
    assert holm_adjusted([]) == []


def test_no_value_exceeds_one_or_falls_below_its_own():
    values = np.random.default_rng(0).random(20).tolist()
    adjusted = holm_adjusted(values)
    assert max(adjusted) <= 1
    assert all(after >= before for before, after in zip(values, adjusted, strict=True))


def test_false_alarms_among_many_stay_rare():
    rng = np.random.default_rng(1)
    alarms = sum(min(holm_adjusted(rng.random(10).tolist())) < 0.05 for _ in range(1000))
    assert alarms < 75
