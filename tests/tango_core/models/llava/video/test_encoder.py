"""Tokens, signals and sinks of the vision half against stock SigLIP and pooling by hand."""

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from llava_originals import WIDTH
from llava_video_clip import ALL_SIGNALS, NAME, NUM_FRAMES, SIDE
from torch.nn import functional as F

from tango_core.models import load_encoder
from tango_core.ops.saliency import pool_grid

GOLDEN = GOLDEN_DIR / "unit_saliency_siglip.npz"
SIGNALS = ["attention", "keys", "saliency"]


def normalised(clip):
    return torch.tensor(clip.pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def test_tokens_are_averages_of_two_by_two_projected_patches(original, features, clip):
    states = original.tower(normalised(clip), output_hidden_states=True).hidden_states
    projected = original.projector(states[-1]).view(NUM_FRAMES, 7, 7, WIDTH)
    averaged = F.avg_pool2d(projected.permute(0, 3, 1, 2), kernel_size=2, stride=2)
    expected = averaged.flatten(2).transpose(1, 2)
    assert features.grid == (SIDE, SIDE)
    torch.testing.assert_close(features.tokens, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("pooling", ["average", "bilinear"])
@torch.no_grad()
def test_signals_are_pooled_like_the_tokens(directory, clip, pooling, signal, monkeypatch):
    """A score must land where its feature does: one operator for both."""
    encoder = load_encoder(NAME, directory, pooling=pooling)
    features = encoder.encode(clip, ALL_SIGNALS)
    side = {"average": 3, "bilinear": 4}[pooling]
    assert features.grid == (side, side)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "_pool", lambda maps: maps)
        rows = torch.tensor(clip.pixels)
        raw = encoder.encode_rows(rows, features.grid, ALL_SIGNALS)
    for name in (signal, "tokens"):
        expected = pool_grid(raw[name], (7, 7), pooling)
        assert torch.equal(getattr(features, name), expected)


def test_average_pooling_agrees_with_the_official_release():
    with np.load(GOLDEN) as arrays:
        golden = {name: torch.tensor(arrays[name]) for name in arrays.files}
    for raw, pooled in (("feat", "feat_pooled"), ("p_attn", "p_attn_pooled")):
        maps = golden[raw][:, 0] if raw == "p_attn" else golden[raw]
        found = pool_grid(maps, (27, 27), "average")
        torch.testing.assert_close(found, golden[f"average/{pooled}"], rtol=1e-5, atol=1e-8)


@torch.no_grad()
def test_a_larger_step_averages_larger_squares_and_has_no_sinks(original, directory, clip):
    features = load_encoder(NAME, directory, pooling_step=3).encode(clip, ALL_SIGNALS)
    states = original.tower(normalised(clip), output_hidden_states=True).hidden_states
    projected = original.projector(states[-1]).view(NUM_FRAMES, 7, 7, WIDTH)
    squares = [projected[:, y : y + 3, x : x + 3].mean(dim=(1, 2)) for y in (0, 3) for x in (0, 3)]
    assert (features.grid, features.sinks) == ((2, 2), ())
    assert features.saliency.shape == features.attention.shape == (NUM_FRAMES, 4)
    torch.testing.assert_close(features.tokens, torch.stack(squares, 1), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_tower_ends_one_block_before_the_siglip_it_was_made_from(original, features, clip):
    states = original.siglip(normalised(clip), output_hidden_states=True).hidden_states
    assert len(states) == 4
    projected = original.projector(states[-2]).view(NUM_FRAMES, 7, 7, WIDTH)
    first = projected[:, :2, :2].mean(dim=(1, 2))
    torch.testing.assert_close(features.tokens[:, 0], first, rtol=1e-5, atol=1e-5)
