"""EVS against its released rule written out, and clips shorter than its first frame asks for."""

import pytest

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip


def _kept(features, **options):
    return build_method("evs", **options).compressor.compress(features).indices.tolist()


@pytest.mark.parametrize("retention", [0.125, 0.25, 0.5])
def test_both_budgets_agree_from_one_frame_on(retention):
    features = make_clip(num_frames=8, grid=(4, 4))
    ours = [_kept(features, retention=retention, budget=b) for b in ("exact", "official")]
    assert ours[0] == ours[1]


def test_a_frozen_clip_fills_its_budget_from_the_front():
    features = make_clip(num_frames=4, grid=(4, 4), kind="static")
    assert _kept(features, retention=0.5) == list(range(32))


def test_a_budget_below_one_frame_is_spread_over_the_first():
    features = make_clip(num_frames=2, grid=(4, 4))
    kept = _kept(features, retention=0.125)
    assert kept == [2, 6, 10, 14]


def test_one_frame_keeps_its_share_unless_the_released_budget_is_asked_for():
    features = make_clip(num_frames=1, grid=(4, 5))
    assert len(_kept(features, retention=0.25)) == 5
    assert _kept(features, retention=0.25, budget="official") == list(range(20))
