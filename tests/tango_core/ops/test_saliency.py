"""Saliency: official vectors, pooling, and the ranking rule."""

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from rounding import assert_equal_but_for_rounding, rounding_bound

from tango_core.ops.saliency import (
    mean_query_attention,
    pool_grid,
    pooled_grid,
    pooling_head_attention,
    rank_descending,
    top_positions,
)

GOLDEN = GOLDEN_DIR


def _load(name):
    with np.load(GOLDEN / name) as data:
        return {key: torch.from_numpy(data[key]) for key in data.files}


def test_pooling_head_attention_is_that_of_the_release():
    data = _load("unit_saliency_siglip.npz")
    ours = pooling_head_attention(
        data["hidden"],
        data["probe"],
        data["in_proj_weight"],
        data["in_proj_bias"],
        int(data["heads"]),
        data["ln_w"],
        data["ln_b"],
    )
    expected = data["p_attn"][:, 0]
    # Relative errors of a softmax are absolute errors of its logits: sums of a projection and of
    # a product, whose size is at least the range that the probabilities show.
    logits = (expected.max() / expected.min()).log()
    bound = 2 * rounding_bound(logits, 2 * data["hidden"].shape[-1])
    torch.testing.assert_close(ours, expected, rtol=bound, atol=0)


@pytest.mark.parametrize(("how", "size"), [("bilinear", 196), ("average", 169)])
def test_features_and_scores_are_pooled_as_in_the_release(how, size):
    data = _load("unit_saliency_siglip.npz")
    features = pool_grid(data["feat"], (27, 27), how)
    assert features.shape == (3, size, 12)
    # A pooled value is a mean of four, whose weights are products of two; a weight is what is left
    # of a coordinate up to 27, whose rounding it keeps, along both axes.
    terms = 8 + 2 * 27
    assert_equal_but_for_rounding(features, data[f"{how}/feat_pooled"], terms)
    scores = pool_grid(data["p_attn"][:, 0], (27, 27), how)
    assert_equal_but_for_rounding(scores, data[f"{how}/p_attn_pooled"], terms)


def test_mean_query_attention_is_that_of_the_release_in_float32():
    data = _load("unit_saliency_qwen25.npz")
    cosines, sines = data["cos"][:, None], data["sin"][:, None]

    def rotary(x):
        first, second = x.chunk(2, dim=-1)
        return x * cosines + torch.cat([-second, first], dim=-1) * sines

    num_frames = int(data["grid_thw"][0])
    ours = mean_query_attention(rotary(data["q"]), rotary(data["k"]), num_frames)
    torch.testing.assert_close(ours, data["p_attn"], rtol=1e-5, atol=1e-7)
    assert len(ours.unique()) > int(data["n_distinct_bf16"])


def test_ranking_puts_the_lowest_position_first_among_equals():
    scores = torch.tensor([[0.5, 2.0, 0.5, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert rank_descending(scores).tolist() == [[1, 3, 4, 0, 2], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("values", [[1.0, -1.0, 0.0, -0.0, 0.5], [3e38, -3e38, 1e-40, -1e-40]])
@pytest.mark.parametrize("infinities", [[], [float("inf"), -float("inf")]])
def test_top_positions_are_those_of_the_ranking(values, infinities):
    choices = torch.tensor(values + infinities)
    draws = torch.randint(len(choices), (50,), generator=torch.Generator().manual_seed(0))
    scores = choices[draws]
    for count in range(51):
        expected = rank_descending(scores)[:count].sort().values
        assert torch.equal(top_positions(scores, count), expected)


def test_maps_that_do_not_fit_the_grid_are_an_error():
    with pytest.raises(ValueError, match=r"maps must be \(T, 729\)"):
        pool_grid(torch.zeros(2, 728), (27, 27), "bilinear")
    with pytest.raises(ValueError, match="do not divide into 3 frames"):
        mean_query_attention(torch.zeros(10, 1, 4), torch.zeros(10, 1, 4), 3)


@pytest.mark.parametrize(
    ("how", "sides"),
    [("bilinear", {2: 14, 3: 9, 4: 7, 5: 6, 6: 5}), ("average", {2: 13, 3: 9, 4: 6, 5: 5, 6: 4})],
)
def test_larger_steps_give_smaller_grids(how, sides):
    assert {step: pooled_grid((27, 27), how, step) for step in sides} == {
        step: (side, side) for step, side in sides.items()
    }
    for step, side in sides.items():
        assert pool_grid(torch.zeros(1, 729), (27, 27), how, step).shape == (1, side * side)
