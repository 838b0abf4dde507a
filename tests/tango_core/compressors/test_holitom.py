"""HoliTom against its official release, and clips that are frozen, tiny or tied."""

import numpy as np
import official
import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip

FILES = ["holitom_blob16_7.npz", "holitom_one_7.npz", "holitom_static8_6.npz"]
INNER = {"name": "holitom-merge", "layer": 18, "retention": 0.5}


def _compress(features, **options):
    return build_method("holitom", **options).compressor.compress(features)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("percent", [10, 15, 20])
class TestOfficialRelease:
    def test_same_positions_and_tokens(self, name, percent):
        arrays = official.load(name)
        ours = _compress(official.features(arrays, attention="attn"), retention=percent / 100)
        official.assert_same_tokens(
            ours,
            arrays[f"r{percent}_one_token/kept_output_order"],
            arrays[f"r{percent}_one_token/tokens_with_newlines"][:-1],
        )

    def test_same_sequence_on_models_with_a_newline_per_row(self, name, percent):
        arrays = official.load(name)
        ours = _compress(official.features(arrays, attention="attn"), retention=percent / 100)
        theirs = arrays[f"r{percent}_grid/tokens_with_newlines"]
        sequence = official.with_newlines(ours, arrays["newline"])
        np.testing.assert_allclose(sequence, theirs, rtol=1e-5, atol=1e-5)


def test_a_frozen_clip_never_vanishes():
    features = make_clip(num_frames=4, grid=(2, 2), kind="static")
    assert _compress(features, retention=0.01).indices.tolist() == [0]


def test_a_single_cluster_stays_at_its_first_place():
    """With one cluster all densities are equal; the release leaves the choice to noise."""
    features = make_clip(num_frames=2, grid=(3, 3), kind="static")
    ours = _compress(features, retention=1 / 18)
    assert ours.indices.tolist() == [0]
    frame = features.tokens[0]
    torch.testing.assert_close(ours.tokens[0], 0.6 * frame[0] + 0.4 * frame[1:].mean(dim=0))


@pytest.mark.parametrize(("retention", "tau"), [(0.05, 0.65), (0.1, 0.65), (0.15, 0.8), (0.5, 0.8)])
def test_the_published_threshold_follows_the_target(retention, tau):
    for inner in (None, INNER):
        method = build_method("holitom", retention=retention, inner=inner)
        assert method.compressor.identity()["tau"] == tau
