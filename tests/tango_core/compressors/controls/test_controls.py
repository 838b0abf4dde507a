"""The controls against torch's pooling operators, and what they say of clips they cannot shrink."""

import logging

import official
import pytest
import torch
from golden_files import GOLDEN2_DIR

from tango_core.compressors import build_method, equivalent_retention
from tango_core.compressors.contract.inputs import make_clip
from tango_core.types import VisualFeatures

CASES = ["sq", "rect", "one"]
PERCENT = [10, 15, 20, 25, 50]
NAMES = {"frames": "fewer_frames", "space": "pool_space", "time": "pool_time"}


def _load(case):
    arrays = official.load("controls.npz", GOLDEN2_DIR)
    features = official.features(
        {"features": arrays[f"{case}/features"], "grid": arrays[f"{case}/grid"]}
    )
    return arrays, features


def _compress(features, name, **options):
    return build_method(name, **options).compressor.compress(features)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", NAMES)
def test_same_positions_and_averages(case, kind):
    arrays, features = _load(case)
    for percent in PERCENT:
        ours = _compress(features, NAMES[kind], retention=percent / 100)
        key = f"{case}/r{percent}/{kind}"
        assert ours.indices.tolist() == arrays[f"{key}/indices"].tolist()
        expected = arrays.get(f"{key}/tokens", features.tokens.flatten(0, 1)[ours.indices].numpy())
        torch.testing.assert_close(ours.tokens, torch.as_tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("factor", [2, 3])
def test_same_blocks(case, factor):
    arrays, features = _load(case)
    first = _compress(features, "block", factor=factor)
    mean = _compress(features, "block", factor=factor, keep="mean")
    expected = arrays[f"{case}/block{factor}/first_indices"].tolist()
    assert first.indices.tolist() == mean.indices.tolist() == expected
    torch.testing.assert_close(
        mean.tokens, torch.from_numpy(arrays[f"{case}/block{factor}/mean_tokens"])
    )


@pytest.mark.parametrize("grid", [(4, 4), (3, 7)])
def test_a_random_token_of_every_block(grid):
    features = make_clip(num_frames=4, grid=grid)
    kept = [_compress(features, "block", keep="random", seed=seed).indices for seed in (0, 0, 1)]
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[0], kept[2])
    height, width = grid
    cells = kept[0] % (height * width)
    frames = kept[0] // (height * width)
    blocks = frames * 100 + cells // width // 2 * 10 + cells % width // 2
    assert len(blocks.unique()) == len(blocks) == 4 * -(-height // 2) * -(-width // 2)


def test_an_exact_grid_is_no_strip():
    compressor = build_method("pool_space", retention=0.2, budget="exact").compressor
    assert compressor.pooled_grid((13, 13)) == (5, 7)  # 3 x 11 would be nearer to 33.8


@pytest.mark.parametrize("name", ["fewer_frames", "pool_time"])
def test_one_frame_is_kept_whole_and_said_so(name, caplog):
    features = make_clip(num_frames=1)
    with caplog.at_level(logging.WARNING):
        assert _compress(features, name, retention=0.1).num_kept == 16
    assert f"{name} keeps all tokens of a clip of one frame" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["pool_space", "pool_time"])
def test_averages_are_made_in_float32(name, dtype):
    tokens = torch.full((8, 16, 4), 300.0, dtype=dtype)
    tokens[::2] = -300.0
    features = VisualFeatures(tokens, (4, 4), torch.arange(8, dtype=torch.float64))
    kept = _compress(features, name, retention=0.25).tokens
    assert kept.isfinite().all()
    assert kept.abs().max() <= 300


def test_a_block_of_one_keeps_everything_and_shares_the_cache_of_full():
    method = build_method("block", factor=1)
    assert method.compressor.identity() == {"name": "full"}
    assert equivalent_retention(method) == 1


def test_a_seed_that_draws_nothing_names_no_other_cache():
    one, other = (build_method("block", seed=seed).compressor.identity() for seed in (0, 1))
    assert one == other
