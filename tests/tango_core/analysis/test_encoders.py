"""Attention, sinks, activations and clusters: planted ones are found, numbers against NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.ndimage import label
from scipy.stats import rankdata

from tango_core.analysis.clusters import cluster_labels, fragmentation
from tango_core.analysis.coverage import rank_correlation
from tango_core.analysis.sinks import (
    MOST_ATTENDED,
    STATISTICS,
    ActivationStudy,
    SignalProfile,
    SinkCalibration,
    SinkRule,
    describe,
)
from tango_core.models.options import PUBLISHED_SINKS, read_sinks
from tango_core.models.towers.trace import TowerTrace
from tango_core.types import VisualFeatures

GRID = (14, 14)
PLANTED = PUBLISHED_SINKS[GRID]
SINK = 7


def clip_scores(seed: int, planted=(), num_frames=8, grid=GRID) -> torch.Tensor:
    """Scores of content that moves, with sinks that outrank it in all frames but one of twenty."""
    rng = np.random.default_rng(seed)
    scores = rng.gamma(1.0, 1.0, (num_frames, grid[0] * grid[1]))
    for position in planted:
        scores[:, position] = rng.uniform(5, 9, num_frames)
        scores[rng.random(num_frames) < 0.05, position] = 1.0
    return torch.tensor(scores, dtype=torch.float32)


def calibrated(planted, num_clips=24, every=1):
    calibration = SinkCalibration()
    for seed in range(num_clips):
        calibration.add(clip_scores(seed, planted if seed % every == 0 else ()), GRID)
    return calibration


@pytest.mark.parametrize("planted", [PLANTED, (), (195, 3)], ids=str)
def test_exactly_the_planted_sinks_are_found(planted):
    report = calibrated(planted).report()
    assert set(report.sinks) == set(planted)
    assert (report.num_clips, report.num_frames) == (24, 192)
    ranks = np.concatenate(
        [rankdata(-clip_scores(seed, planted).numpy(), axis=1) for seed in range(24)]
    )
    np.testing.assert_allclose(report.rank_mean, ranks.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(report.rank_spread, ranks.std(axis=0), rtol=1e-9)


def test_the_spread_excludes_a_position_that_is_high_in_half_of_the_clips():
    calibration = calibrated((50,), 40, every=2)
    assert calibration.report(SinkRule(max_mean_rank=0.5, max_spread=0.1)).sinks == ()
    assert 50 in calibration.report(SinkRule(max_mean_rank=0.5, max_spread=1.0)).sinks


def test_a_recipe_can_name_the_file_of_sinks(tmp_path):
    file = tmp_path / "sinks.json"
    content = calibrated(PLANTED).report().to_json({"name": "toy", "digest": "abc"})
    file.write_text(json.dumps(content))
    sinks = read_sinks(str(file))
    assert (sinks.grid, set(sinks.positions)) == (GRID, set(PLANTED))
    assert content["clips"] == 24
    assert len(content["statistics"]["rank_mean"]) == 196


def test_invalid_clips_and_rules_are_refused():
    calibration = calibrated((), num_clips=1)
    with pytest.raises(ValueError, match=r"this clip has 6 x 6 positions, earlier ones 14 x 14"):
        calibration.add(clip_scores(0, grid=(6, 6)), (6, 6))
    with pytest.raises(ValueError, match="NaN"):
        calibration.add(torch.full((2, 196), torch.nan), GRID)
    with pytest.raises(ValueError, match="no clip"):
        SinkCalibration().report()
    with pytest.raises(ValueError, match=r"max_spread must be in \(0, 1\]"):
        SinkRule(max_spread=1.5)
    for scores in (torch.zeros(1, 12), -torch.ones(1, 12)):
        with pytest.raises(ValueError, match="negative or empty frames"):
            SignalProfile("saliency").add(scores, (3, 4))


def test_curves_and_maps_of_signals_are_those_of_numpy():
    rng = np.random.default_rng(0)
    clips = [rng.gamma(0.5, 1.0, (frames, 12)) for frames in (4, 7, 2, 5)]
    profile = SignalProfile("saliency")
    for scores in clips:
        profile.add(torch.tensor(scores), (3, 4))
    report = profile.report()
    scaled = [12 * scores / scores.sum(axis=1, keepdims=True) for scores in clips]
    curves = np.array([np.sort(one, axis=1)[:, ::-1].mean(axis=0) for one in scaled])
    np.testing.assert_allclose(report.by_rank, curves.mean(axis=0), rtol=1e-6)
    for found, share in ((report.low, 0.1), (report.high, 0.9)):
        np.testing.assert_allclose(found, np.quantile(curves, share, axis=0), rtol=1e-6)
    np.testing.assert_allclose(report.mean_map, np.concatenate(scaled).mean(axis=0), rtol=1e-9)


def trace_of(seed, *, sink=True):
    """A clip whose patch `SINK` has one huge activation after layer 1, and draws attention."""
    rng = np.random.default_rng(seed)
    layers = rng.normal(size=(3, 6, 20, 64))
    attention = rng.gamma(1.0, 1.0, (6, 20))
    if sink:
        layers[1:, :, SINK, 11] = 500.0
        attention[:, SINK] = 30.0
    hidden = torch.tensor(layers, dtype=torch.float32)
    norms = hidden.norm(dim=-1).transpose(0, 1).contiguous()
    attention = torch.tensor(attention, dtype=torch.float32)
    return TowerTrace((4, 5), norms, {1: hidden[1], 2: hidden[2]}, attention)


def test_statistics_of_activations_are_those_of_numpy():
    values = np.abs(np.random.default_rng(0).normal(size=(3, 200)))
    ordered = np.sort(values, axis=1)[:, ::-1]
    places = {"top 1": 0, "top 2": 1, "top 3": 2, "top 1 %": 1, "top 10 %": 19, "top 25 %": 49}
    expected = {name: ordered[:, place] for name, place in places.items()}
    expected |= {"mean": values.mean(axis=1), "SD": values.std(axis=1), "median": ordered[:, 100]}
    found = describe(torch.tensor(values))
    assert tuple(expected) == STATISTICS
    for column, name in enumerate(STATISTICS):
        np.testing.assert_allclose(found[:, column], expected[name], err_msg=name)


@pytest.mark.parametrize("sink", [True, False])
def test_a_patch_with_huge_activations_is_found(sink):
    study = ActivationStudy([1, 2])
    for seed in range(12):
        study.add(trace_of(seed, sink=sink))
    report = study.report()
    assert bool(report.ranks.sinks) is sink
    if not sink:  # the most attended patches are compared instead
        assert len(report.chosen) == MOST_ATTENDED
        return
    others = np.arange(20) != SINK
    assert report.chosen == (SINK,)
    assert report.statistics[:, SINK, 0].tolist() == pytest.approx([500, 500])
    assert report.statistics[:, others, 0].max() < 5
    assert report.norms[1, SINK] > 400 > 20 > report.norms[1, others].max()
    assert report.norms[0, SINK] < 12  # not yet after the embeddings
    other = trace_of(1)
    with pytest.raises(ValueError, match="sinks belong to one grid"):
        study.add(TowerTrace((5, 4), other.norms, other.hidden, other.attention))


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 6, 5), (5, 1, 7)])
@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_pieces_of_clusters_are_those_of_scipy(shape, clusters):
    labels = np.random.default_rng(clusters).integers(0, clusters, shape)
    pieces, shares = [], []
    for cluster in np.unique(labels):
        found, number = label(labels == cluster)
        pieces.append(number)
        shares.append(np.bincount(found.ravel())[1:].max() / (labels == cluster).sum())
    found, largest = fragmentation(labels)
    assert found.tolist() == pieces
    np.testing.assert_allclose(largest, shares, rtol=1e-6)


def test_st_rope_gives_fewer_pieces_where_tokens_repeat():
    """Two looks alternate over the frame, so similarity alone tears clusters apart."""
    rng = np.random.default_rng(0)
    tokens = rng.normal(size=(2, 48))[np.indices((8, 8)).sum(axis=0) % 2].reshape(1, 64, 48)
    tokens = torch.tensor(tokens + 0.05 * rng.normal(size=(3, 64, 48)), dtype=torch.float32)
    features = VisualFeatures(tokens, (8, 8), torch.arange(3, dtype=torch.float64))
    bare, rotated = (
        fragmentation(cluster_labels(features, slice(0, 3), 0.1, rotated=on))[0]
        for on in (False, True)
    )
    assert len(bare) == len(rotated) == 19  # a tenth of 192 tokens
    assert rotated.sum() < bare.sum()


def test_an_unknown_correlation_is_none():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert rank_correlation([1, 2, 3, 3], [1, 3, 2, 2]) == pytest.approx(1 / 3)
