"""Cosines to the nearest kept token against brute force, and their sums over clips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tango_core.analysis import coverage
from tango_core.analysis.coverage import TIME_PARTS, CoverageTotals, nearest_kept
from tango_core.compressors import build_method
from tango_core.types import CompressedVideo, VisualFeatures


def features_of(num_frames=5, grid=(3, 4), dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(num_frames, grid[0] * grid[1], dim, generator=generator)
    return VisualFeatures(tokens, grid, torch.arange(num_frames, dtype=torch.float64))


def brute_force(tokens, kept):
    unit = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    other = kept / np.linalg.norm(kept, axis=-1, keepdims=True)
    return np.einsum("tld,kd->tlk", unit, other).max(axis=-1)


@pytest.mark.parametrize("name", ["uniform", "divprune", "pool_time"])
def test_cosines_are_those_of_brute_force_in_blocks_too(name, monkeypatch):
    monkeypatch.setattr(coverage, "_AT_ONCE", 7)
    features = features_of()
    video = build_method(name, retention=0.4).compressor.compress(features)
    found = nearest_kept(features.tokens, video)
    expected = brute_force(features.tokens.numpy(), video.tokens.numpy())
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_all_tokens_cover_themselves_and_none_cover_nothing():
    features = features_of()
    full = build_method("full").compressor.compress(features)
    assert nearest_kept(features.tokens, full).min() > 0.9999
    nothing = CompressedVideo(
        features.tokens[0, :0], torch.zeros(0, dtype=torch.int64), (5, 3, 4), features.timestamps
    )
    with pytest.raises(ValueError, match="no token is kept"):
        nearest_kept(features.tokens, nothing)


def test_sums_over_clips_of_any_length_and_grid():
    rng = np.random.default_rng(1)
    clips = [rng.uniform(-1, 1, (frames, 12)) for frames in (8, 8, 3)] + [
        rng.uniform(-1, 1, (2, 20))
    ]
    totals = CoverageTotals()
    for cosines, grid in zip(clips, [(3, 4)] * 3 + [(4, 5)], strict=True):
        totals.add(torch.tensor(cosines, dtype=torch.float32), 6, grid)
    assert totals.retention == pytest.approx(24 / sum(one.size for one in clips))
    tails = [np.sort(one.ravel())[: max(1, round(one.size / 20))].mean() for one in clips]
    expected = [[one.mean() for one in clips], tails, [one.min() for one in clips]]
    assert totals.means == pytest.approx(np.mean(expected, axis=1), abs=1e-6)
    grid, mean, worst = totals.by_place
    frames = np.concatenate(clips[:3])
    assert grid == (3, 4)
    np.testing.assert_allclose(mean.ravel(), frames.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(worst.ravel(), frames.min(axis=0), atol=1e-6)
    # The clip of two frames shows its first in part 0 and its second in the middle.
    parts = {part: (middle, low) for part, middle, low in totals.by_time}
    assert set(parts) == set(range(TIME_PARTS))
    in_middle = [clips[0][4], clips[1][4], clips[3][1]]
    assert parts[4][0] == pytest.approx(np.mean([one.mean() for one in in_middle]), abs=1e-6)
    assert parts[4][1] == pytest.approx(min(one.min() for one in in_middle), abs=1e-6)
