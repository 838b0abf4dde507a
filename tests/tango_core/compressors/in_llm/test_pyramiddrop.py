"""PyramidDrop and the schedules of staged methods."""

import pytest

from tango_core.compressors import build_method
from tango_core.compressors.in_llm.pyramiddrop import PyramidDrop


def test_the_published_average_gives_the_published_schedule():
    assert PyramidDrop(retention=0.46875).schedule(28) == {7: 0.5, 14: 0.25, 21: 0.125}
    assert PyramidDrop(retention=0.46875).schedule(32) == {8: 0.5, 16: 0.25, 24: 0.125}


def test_small_targets_move_only_the_first_stage():
    schedule = PyramidDrop(retention=0.1).schedule(28)
    assert list(schedule) == [1, 14, 21]
    assert schedule[14] == pytest.approx(schedule[1] / 2)
    assert schedule[21] == pytest.approx(schedule[1] / 4)


def test_the_first_stage_stands_at_the_given_layer_where_the_target_allows_it():
    assert list(PyramidDrop(retention=0.5, layer=10).schedule(28)) == [10, 14, 21]
    assert list(PyramidDrop(retention=0.8, layer=20).schedule(28)) == [13, 14, 21]
    early = PyramidDrop(retention=0.1, layer=10).schedule(28)
    assert min(early) < 2.8  # all tokens in more layers would exceed the target
    assert PyramidDrop(retention=0.5).layer == 2
    assert list(PyramidDrop(retention=0.5).schedule(28)) == [7, 14, 21]


def test_stages_and_ratios_of_ones_own_are_taken_as_they_are():
    method = build_method(
        "pyramiddrop", retention=0.375, stages=[2, 4], ratios=[0.5, 0.25], num_layers=8
    )
    assert method.pruner.schedule(8) == pytest.approx({2: 1 / 4, 4: 1 / 8})
