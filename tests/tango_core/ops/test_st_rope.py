"""ST-RoPE: official vectors, and the two laws it exists for."""

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops.st_rope import (
    section_widths,
    st_rope,
)

GOLDEN = GOLDEN_DIR / "unit_strope.npz"


def _tokens(num_frames, grid, dim, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_frames, grid[0] * grid[1], dim, generator=generator)


@pytest.mark.parametrize("case", ["sq48", "rect96", "d3584"])
def test_rotated_features_are_those_of_the_release(case):
    with np.load(GOLDEN) as data:
        tokens, times, grid, sections, expected = (
            data[f"{case}/{key}"]
            for key in ("x", "t", "grid", "sections", "y_normalised_then_roped")
        )
    assert section_widths(tokens.shape[-1]) == tuple(sections.tolist())
    ours = st_rope(torch.from_numpy(tokens), torch.from_numpy(times), tuple(grid.tolist()))
    torch.testing.assert_close(ours, torch.from_numpy(expected), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 1000), shift=st.floats(-100, 100))
@settings(max_examples=25, deadline=None)
def test_inner_products_depend_on_time_differences_only(seed, shift):
    tokens, times = _tokens(3, (2, 3), 48, seed), torch.tensor([0.0, 1.5, 7.25]).double()
    grams = [st_rope(tokens, t, (2, 3)).flatten(0, 1) for t in (times, times + shift)]
    torch.testing.assert_close(grams[0] @ grams[0].T, grams[1] @ grams[1].T, rtol=0, atol=2e-5)


def test_half_precision_tokens_do_not_round_the_clock():
    tokens = _tokens(2, (2, 2), 48)
    late = torch.tensor([1000.0, 1001.0]).double()
    exact = st_rope(tokens.bfloat16().float(), late, (2, 2))
    assert torch.equal(st_rope(tokens.bfloat16(), late, (2, 2)), exact)
    same_time = st_rope(tokens.bfloat16(), torch.tensor([1000.0, 1000.0]), (2, 2))
    assert not torch.allclose(same_time, exact, atol=1e-3)


def test_an_odd_width_is_an_error():
    with pytest.raises(ValueError, match="D must be even, got 47"):
        st_rope(_tokens(1, (2, 2), 47), torch.zeros(1), (2, 2))
