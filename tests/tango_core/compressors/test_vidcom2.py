"""VidCom2 against its official functions, and its budgets between frames."""

import numpy as np
import official
import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.vidcom2 import VidCom2

FILES = ["vidcom2_blob8_7.npz", "vidcom2_one_7.npz"]


def _compress(features, retention):
    return build_method("vidcom2", retention=retention).compressor.compress(features)


def _per_frame(ours):
    return torch.bincount(ours.indices // (ours.grid[1] * ours.grid[2])).tolist()


@pytest.mark.parametrize("name", FILES)
class TestOfficialFunctions:
    @pytest.mark.parametrize("percent", [10, 15, 20, 90])
    def test_same_positions(self, name, percent):
        arrays = official.load(name)
        kept = arrays[f"r{percent}/kept"]
        tokens = arrays["features"].reshape(-1, arrays["features"].shape[-1])[kept]
        ours = _compress(official.features(arrays), percent / 100)
        official.assert_same_tokens(ours, kept, tokens)

    def test_same_scores(self, name):
        arrays = official.load(name)
        ours = VidCom2(0.1)._similarities(torch.from_numpy(arrays["features"]))
        for scores, key in zip(ours, ("vid_score", "frame_score"), strict=True):
            np.testing.assert_allclose(scores.numpy(), arrays[key], rtol=1e-5)

    @pytest.mark.parametrize("percent", [10, 15, 20, 90])
    def test_same_shares_per_frame(self, name, percent):
        arrays = official.load(name)
        ours = VidCom2(percent / 100)._scales(torch.from_numpy(arrays["vid_score"]))
        np.testing.assert_allclose(ours.numpy(), arrays[f"r{percent}/scales"], rtol=1e-5)


def test_an_unusual_frame_gets_more_tokens():
    features = make_clip(num_frames=8, grid=(8, 8), kind="static")
    features.tokens[3] = make_clip(num_frames=1, grid=(8, 8), kind="noise", seed=9).tokens[0]
    counts = _per_frame(_compress(features, 0.25))
    assert counts[3] > max(counts[:3] + counts[4:])
