"""Budgets that add up."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops.budgets import apportion, ceil_share, fill, floor_share


@given(
    total=st.integers(0, 200),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
)
@settings(max_examples=80, deadline=None)
def test_largest_remainder_is_within_one_of_the_quota(total, sizes):
    capacity = np.array(sizes)
    weights = capacity.astype(float)
    quotas = fill(float(total), weights, weights)
    counts = apportion(total, quotas, capacity)
    assert counts.sum() == min(total, capacity.sum())
    assert (counts <= capacity).all()
    assert (np.abs(counts - quotas) < 1 + 1e-6).all()


def test_shares_beyond_a_capacity_go_to_the_others():
    shares = fill(10.0, np.array([1.0, 1.0, 2.0]), np.array([1.0, 9.0, 9.0]))
    np.testing.assert_allclose(shares, [1.0, 3.0, 6.0])


def test_a_product_that_is_whole_but_for_rounding_is_whole():
    """In floating point 49 * (4 / 49) is below 4, and 100 * 0.29 below 29."""
    for total in (49, 64, 100, 169, 196, 729):
        for kept in range(1, total + 1):
            assert floor_share(total, kept / total) == ceil_share(total, kept / total) == kept
    assert (floor_share(100, 0.29), ceil_share(10, 0.7)) == (29, 7)
    assert (floor_share(196, 0.1), ceil_share(196, 0.1)) == (19, 20)
