"""Sorted signals, mean maps and what the highest tokens hold, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tango_core.analysis.attention import SignalProfile

GRID = (3, 4)


def profile_of(clips):
    profile = SignalProfile("saliency")
    for scores in clips:
        profile.add(torch.tensor(scores), GRID)
    return profile.report()


@pytest.fixture(scope="module")
def clips():
    rng = np.random.default_rng(0)
    return [rng.gamma(0.5, 1.0, (frames, 12)) for frames in (4, 7, 2, 5)]


def test_curves_and_maps_are_those_of_numpy(clips):
    report = profile_of(clips)
    scaled = [12 * scores / scores.sum(axis=1, keepdims=True) for scores in clips]
    curves = np.array([np.sort(one, axis=1)[:, ::-1].mean(axis=0) for one in scaled])
    np.testing.assert_allclose(report.by_rank, curves.mean(axis=0), rtol=1e-6)
    for found, share in ((report.low, 0.1), (report.high, 0.9)):
        np.testing.assert_allclose(found, np.quantile(curves, share, axis=0), rtol=1e-6)
    frames = np.concatenate(scaled)
    np.testing.assert_allclose(report.mean_map, frames.mean(axis=0), rtol=1e-9)
    assert report.top(3) == np.argsort(-frames.mean(axis=0), kind="stable")[:3].tolist()
    # A quarter of 12 positions are 3; a hundredth is one.
    assert report.top_shares[0.25] == pytest.approx(curves.mean(axis=0)[:3].sum() / 12)
    assert report.top_shares[0.01] == pytest.approx(curves.mean(axis=0)[0] / 12)


def test_equal_scores_are_as_spread_out_as_there_are_tokens_and_one_is_one():
    assert profile_of([np.ones((2, 12))]).effective_tokens == pytest.approx(12)
    assert profile_of([np.eye(12)[:3]]).effective_tokens == pytest.approx(1)


@pytest.mark.parametrize("scores", [np.zeros((1, 12)), -np.ones((1, 12))])
def test_a_frame_that_says_nothing_is_refused(scores):
    with pytest.raises(ValueError, match="negative or empty frames"):
        profile_of([scores])
