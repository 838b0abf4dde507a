"""Segmentation: official vectors, optimality against all cuts, and the rules for ties."""

from itertools import product

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops.segmentation import (
    adjacent_products,
    cosines,
    cut_segments,
    dyseg_cuts,
    static_segments,
)

GOLDEN = GOLDEN_DIR / "unit_segmentation.npz"
TABLES = ["rand12", "rand16", "all_static", "none", "T2", "T1", "T64"]


def adjacent_similarity(tokens):
    squares, products = adjacent_products(tokens)
    return cosines(squares.sqrt(), products)


def _savings(unchanged, lengths):
    """Tokens that a segmentation saves, from the definition."""
    saved, start = 0, 0
    for length in lengths:
        if length > 1:
            saved += int(unchanged[start : start + length - 1].all(axis=0).sum()) * (length - 1)
        start += length
    return saved


@pytest.mark.parametrize("case", TABLES)
def test_windows_are_those_of_the_release(case):
    with np.load(GOLDEN) as data:
        similarity = data[f"{case}/sim"]
        expected = data[f"{case}/tango_holitom_sizes_tau0.8"]
    assert static_segments(similarity > 0.8) == expected.tolist()


@pytest.mark.parametrize("tau", [0.5, 0.65, 0.8, 0.9])
def test_windows_on_features_are_those_of_the_release(tau):
    with np.load(GOLDEN) as data:
        similarity = adjacent_similarity(torch.from_numpy(data["feat/x"]))
        np.testing.assert_allclose(similarity.numpy(), data["feat/sim"], rtol=1e-5, atol=1e-6)
        expected = data[f"feat/holitom_sizes_tau{tau}"]
    assert static_segments((similarity > tau).numpy()) == expected.tolist()


@pytest.mark.parametrize("tau", [0.65, 0.8, 0.9, 0.99])
def test_dyseg_is_that_of_the_release(tau):
    with np.load(GOLDEN) as data:
        frames = torch.from_numpy(data["feat/x"]).mean(dim=1)
        expected = data[f"feat/fastvid_sizes_tau{tau}"]
    assert cut_segments(dyseg_cuts(frames, tau).numpy()) == expected.tolist()


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_dyseg_cuts_a_short_clip_into_its_frames(num_frames):
    with np.load(GOLDEN) as data:
        expected = data[f"fastvid_short_T{num_frames}"]
    frames = torch.ones(num_frames, 4)
    assert cut_segments(dyseg_cuts(frames).numpy()) == expected.tolist() == [1] * num_frames


@given(seed=st.integers(0, 10_000), num_frames=st.integers(1, 9), share=st.floats(0.3, 0.95))
@settings(max_examples=60, deadline=None)
def test_no_other_segmentation_saves_more(seed, num_frames, share):
    unchanged = np.random.default_rng(seed).random((num_frames - 1, 7)) < share
    ours = static_segments(unchanged)
    assert sum(ours) == num_frames
    every_cut = product([False, True], repeat=num_frames - 1)
    best = max(_savings(unchanged, cut_segments(np.array(cuts, dtype=bool))) for cuts in every_cut)
    assert _savings(unchanged, ours) == best


def test_windows_respect_the_longest_allowed():
    unchanged = np.ones((9, 3), dtype=bool)
    assert static_segments(unchanged) == [10]
    assert max(static_segments(unchanged, max_window=4)) == 4
    assert static_segments(unchanged, max_window=1) == [1] * 10


def test_a_zero_token_resembles_nothing():
    tokens = torch.ones(2, 3, 4)
    tokens[0, 1] = 0
    assert adjacent_similarity(tokens).tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_similarity_of_half_precision_tokens_is_computed_in_float32(dtype):
    tokens = (torch.randn(4, 6, 512, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    exact = torch.cosine_similarity(tokens[:-1].double(), tokens[1:].double(), dim=-1)
    torch.testing.assert_close(adjacent_similarity(tokens).double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 4, 5, 6, 7, 10])
def test_products_do_not_depend_on_how_frames_fall_into_windows(num_frames):
    tokens = torch.randn(num_frames, 5, 16, generator=torch.Generator().manual_seed(1))
    squares, products = adjacent_products(tokens)
    assert products.shape == (num_frames - 1, 5)
    torch.testing.assert_close(products, (tokens[:-1] * tokens[1:]).sum(dim=-1))
    torch.testing.assert_close(squares, (tokens**2).sum(dim=-1))
