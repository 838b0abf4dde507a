"""Planted massive activations are found; statistics against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tango_core.analysis.activations import MOST_ATTENDED, STATISTICS, ActivationStudy, describe
from tango_core.models.towers.trace import TowerTrace

SINK = 7
GRID = (4, 5)


def trace_of(seed, *, sink=True):
    """A clip whose patch `SINK` has one huge activation after layer 1, and draws attention."""
    rng = np.random.default_rng(seed)
    layers = rng.normal(size=(3, 6, 20, 64))
    attention = rng.gamma(1.0, 1.0, (6, 20))
    if sink:
        layers[1:, :, SINK, 11] = 500.0
        attention[:, SINK] = 30.0
    hidden = torch.tensor(layers, dtype=torch.float32)
    return TowerTrace(
        GRID,
        hidden.norm(dim=-1).transpose(0, 1).contiguous(),
        {1: hidden[1], 2: hidden[2]},
        torch.tensor(attention, dtype=torch.float32),
    )


def test_statistics_are_those_of_numpy():
    values = np.abs(np.random.default_rng(0).normal(size=(3, 200)))
    ordered = np.sort(values, axis=1)[:, ::-1]
    expected = {
        "top 1": ordered[:, 0],
        "top 2": ordered[:, 1],
        "top 3": ordered[:, 2],
        "top 1 %": ordered[:, 1],
        "top 10 %": ordered[:, 19],
        "top 25 %": ordered[:, 49],
        "mean": values.mean(axis=1),
        "SD": values.std(axis=1),
        "median": ordered[:, 100],
    }
    found = describe(torch.tensor(values))
    assert tuple(expected) == STATISTICS
    for column, name in enumerate(STATISTICS):
        np.testing.assert_allclose(found[:, column], expected[name], err_msg=name)


def test_a_patch_with_huge_activations_is_told_from_the_others():
    study = ActivationStudy([1, 2])
    for seed in range(12):
        study.add(trace_of(seed))
    report = study.report()
    assert report.are_sinks
    assert report.chosen == (SINK,)
    for layer in (1, 2):
        assert report.sinks.statistics[layer][0] == pytest.approx(500)
        assert report.others.statistics[layer][0] < 4
        assert report.sinks.norms[layer] > 400 > 20 > report.others.high[layer]
    assert report.sinks.norms[0] < 12  # not yet after the embeddings
    assert report.others.positions == 19


def test_without_sinks_the_most_attended_patches_stand_in_and_are_not_called_sinks():
    study = ActivationStudy([2])
    for seed in range(12):
        study.add(trace_of(seed, sink=False))
    report = study.report()
    assert not report.are_sinks
    assert len(report.chosen) == MOST_ATTENDED


def test_clips_of_another_grid_and_positions_that_are_all_sinks_are_refused():
    study = ActivationStudy([1])
    study.add(trace_of(0))
    with pytest.raises(ValueError, match="all 20 positions are sinks"):
        study.report(sinks=range(20))
    other = trace_of(1)
    with pytest.raises(ValueError, match="sinks belong to one grid"):
        study.add(TowerTrace((5, 4), other.norms, other.hidden, other.attention))
