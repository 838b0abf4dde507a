"""Sinks that were planted are found, and nothing else; the arithmetic against NumPy and SciPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from tango_core.analysis.sinks import SinkCalibration, SinkRule
from tango_core.models.sinks import PUBLISHED_SINKS, read_sinks

GRID = (14, 14)
PLANTED = PUBLISHED_SINKS[GRID]


def clip_scores(seed: int, planted=(), num_frames=8, grid=GRID) -> torch.Tensor:
    """Scores of content that moves, with sinks that outrank it in all frames but one of twenty."""
    rng = np.random.default_rng(seed)
    scores = rng.gamma(1.0, 1.0, (num_frames, grid[0] * grid[1]))
    for position in planted:
        scores[:, position] = rng.uniform(5, 9, num_frames)
        scores[rng.random(num_frames) < 0.05, position] = 1.0
    return torch.tensor(scores, dtype=torch.float32)


def calibrated(planted, num_clips=24, **options):
    calibration = SinkCalibration(**options)
    for seed in range(num_clips):
        calibration.add(clip_scores(seed, planted), GRID)
    return calibration


@pytest.mark.parametrize("planted", [PLANTED, (), (0,), (195, 3)], ids=str)
def test_exactly_the_planted_sinks_are_found(planted):
    report = calibrated(planted).report()
    assert set(report.sinks) == set(planted)
    assert (report.num_clips, report.num_frames) == (24, 192)


def test_statistics_are_those_of_the_ranks_of_all_frames():
    report = calibrated(PLANTED).report()
    ranks = np.concatenate(
        [rankdata(-clip_scores(seed, PLANTED).numpy(), axis=1) for seed in range(24)]
    )
    np.testing.assert_allclose(report.rank_mean, ranks.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(report.rank_spread, ranks.std(axis=0), rtol=1e-9)


def test_a_place_that_is_high_in_half_of_the_clips_is_told_apart_by_its_spread():
    calibration = SinkCalibration()
    for seed in range(40):
        calibration.add(clip_scores(seed, (50,) if seed % 2 else ()), GRID)
    assert calibration.report(SinkRule(max_mean_rank=0.5, max_spread=0.1)).sinks == ()
    assert 50 in calibration.report(SinkRule(max_mean_rank=0.5, max_spread=1.0)).sinks


def test_the_file_can_be_named_by_a_recipe(tmp_path):
    report = calibrated(PLANTED).report()
    file = tmp_path / "sinks.json"
    file.write_text(json.dumps(report.to_json({"name": "toy", "digest": "abc"})))
    sinks = read_sinks(str(file))
    assert (sinks.grid, sinks.digest) == (GRID, "abc")
    assert set(sinks.positions) == set(PLANTED)
    content = json.loads(file.read_text())
    assert content["clips"] == 24
    assert len(content["statistics"]["rank_mean"]) == 196


def test_clips_of_another_grid_and_nan_are_refused():
    calibration = calibrated((), num_clips=1)
    with pytest.raises(ValueError, match=r"this clip has 6 x 6 positions, earlier ones 14 x 14"):
        calibration.add(clip_scores(0, grid=(6, 6)), (6, 6))
    with pytest.raises(ValueError, match="NaN"):
        calibration.add(torch.full((2, 196), torch.nan), GRID)
    with pytest.raises(ValueError, match="no clip"):
        SinkCalibration().report()


@pytest.mark.parametrize("value", [0, -0.1, 1.5])
def test_a_share_outside_0_and_1_is_refused(value):
    with pytest.raises(ValueError, match=r"max_spread must be in \(0, 1\]"):
        SinkRule(max_spread=value)
