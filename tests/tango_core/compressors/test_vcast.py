"""V-CAST against its release, and clips that are short, still or noisy."""

import numpy as np
import official
import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.vcast import _curvature

FILES = ["blob16_7", "pan8_6", "rect6_5x8", "two_6", "one_6", "frozen8_6"]


def _compress(features, retention, **options):
    return build_method("vcast", retention=retention, **options).compressor.compress(features)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("variant", "legacy"), [("official", True), ("corrected", False)])
def test_same_positions_and_counts_as_the_release(name, variant, legacy):
    arrays, configurations = official.load2(f"vcast_{name}.npz")
    features = official.features(arrays)
    per_frame = features.tokens.shape[1]
    for label, settings in configurations.items():
        ours = _compress(features, settings["r"], legacy_remainder=legacy)
        counts = np.bincount(ours.indices.numpy() // per_frame, minlength=len(features.tokens))
        assert counts.tolist() == arrays[f"{label}/{variant}/counts"].tolist(), label
        assert ours.indices.tolist() == arrays[f"{label}/{variant}/kept"].tolist(), label
        assert torch.equal(ours.tokens, features.tokens.flatten(0, 1)[ours.indices])


def test_curvature_is_that_of_the_release():
    arrays, _ = official.load2("vcast_blob16_7.npz")
    means = torch.nn.functional.normalize(torch.from_numpy(arrays["features"]).mean(dim=1), dim=-1)
    torch.testing.assert_close(
        _curvature(means), torch.from_numpy(arrays["curvature"]), rtol=1e-4, atol=1e-5
    )


def test_what_rounding_leaves_goes_to_one_frame_in_the_release_only():
    """Fault 1: the winning fraction is never lowered."""
    features = make_clip(num_frames=16, grid=(6, 6))

    def counts(legacy):
        kept = _compress(features, 0.3, legacy_remainder=legacy).indices // 36
        return np.bincount(kept.numpy(), minlength=16)

    ours, theirs = counts(False), counts(True)
    assert ours.sum() == theirs.sum() == round(0.3 * 16 * 36)
    assert (theirs - ours).max() >= 4
    assert (ours - theirs).max() == 1


def test_a_smooth_pan_bends_less_than_a_noisy_still_scene():
    """What the score measures is noise where frames hardly differ; see the docstring."""
    generator = torch.Generator().manual_seed(0)
    still = torch.ones(12, 64) + 0.01 * torch.randn(12, 64, generator=generator)
    angles = torch.linspace(0, 1, 12)
    pan = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert _curvature(still)[1:-1].mean() > 1.2
    assert _curvature(pan)[1:-1].mean() < 0.1


@pytest.mark.parametrize(("budget", "kept"), [("official", 8), ("exact", 3)])
def test_fewer_tokens_than_frames(budget, kept):
    features = make_clip(num_frames=8, grid=(4, 4))
    assert _compress(features, 3 / 128, budget=budget).num_kept == kept
