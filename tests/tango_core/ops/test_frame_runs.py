"""Runs of frames in sparse maps: what they are, and that they give the sums of single terms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops import frame_runs
from tango_core.ops.frame_runs import find_runs
from tango_core.ops.merging import gather_weighted

STEP, FRAMES, DIM = 5, 6, 7


def _tokens(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(FRAMES * STEP, DIM, generator=generator).to(dtype)


def _map(*bags):
    """Sources, offsets and weights of bags of (first position, frames, weight) runs."""
    terms = [
        [(start + frame * STEP, weight) for start, frames, weight in bag for frame in range(frames)]
        for bag in bags
    ]
    flat = [term for bag in terms for term in bag]
    ends = torch.tensor([0, *(len(bag) for bag in terms)]).cumsum(0)
    places, weights = zip(*flat, strict=True)
    return torch.tensor(places), ends, torch.tensor(weights)


# Merged places of two segments, kept tokens of one frame, and a token of both.
MERGED = _map(
    [(0, 3, 0.2), (2, 3, 0.1)],
    [(1, 1, 1.0)],
    [(3, 1, 0.25), (15, 3, 0.25)],
    [(17, 3, 0.3), (16, 3, 0.05)],
)
# Averages of stretches of frames at every place but one.
POOLED = _map(
    *([(cell, 2, 0.5)] for cell in range(5)),
    *([(10 + cell, 4, 0.25)] for cell in (0, 1, 3, 4)),
)


def test_runs_follow_from_the_map():
    runs = find_runs(*MERGED, STEP)
    assert runs.starts.tolist() == [0, 2, 1, 3, 15, 17, 16]
    assert runs.lengths.tolist() == [3, 3, 1, 1, 3, 3, 3]
    assert runs.offsets.tolist() == [0, 2, 3, 5, 7]


def test_terms_of_other_weights_places_or_tokens_are_other_runs():
    sources, offsets, weights = _map([(0, 3, 0.2), (15, 3, 0.2)], [(1, 4, 0.25)])
    assert find_runs(sources, offsets, weights, STEP).lengths.tolist() == [6, 4]
    assert find_runs(sources, torch.tensor([0, 3, 10]), weights, STEP).lengths.tolist() == [3, 3, 4]
    weights[3:] = 0.1
    assert find_runs(sources, offsets, weights, STEP).lengths.tolist() == [3, 3, 4]


def test_a_map_without_runs_is_left_to_single_terms():
    sources = torch.arange(8)
    assert find_runs(sources, torch.tensor([0, 4, 8]), torch.ones(8), STEP) is None
    assert find_runs(sources[:0], torch.tensor([0, 0]), torch.ones(0), STEP).offsets.tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("terms", [MERGED, POOLED], ids=["merged", "pooled"])
def test_runs_give_the_sums_of_single_terms(terms, dtype, monkeypatch):
    monkeypatch.setattr(frame_runs, "CELLS", 2)
    tokens = _tokens(dtype)
    sources, offsets, weights = terms
    sums = find_runs(sources, offsets, weights, STEP).combine(tokens)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, gather_weighted(tokens, sources, offsets, weights))


@given(seed=st.integers(0, 10_000), num_kept=st.integers(1, 9), longest=st.integers(1, FRAMES))
@settings(max_examples=60, deadline=None)
def test_any_map_gives_the_sums_of_single_terms(seed, num_kept, longest):
    generator = torch.Generator().manual_seed(seed)

    def draw(most):
        return int(torch.randint(most, (1,), generator=generator))

    bags = []
    for _ in range(num_kept):
        lengths = [1 + draw(longest) for _ in range(1 + draw(3))]
        bags.append(
            [(draw((FRAMES - frames + 1) * STEP), frames, (1 + draw(4)) / 4) for frames in lengths]
        )
    sources, offsets, weights = _map(*bags)
    runs = find_runs(sources, offsets, weights, STEP)
    if runs is None:
        assert 4 * sum(len(bag) for bag in bags) > 3 * len(sources)
        return
    sums = gather_weighted(_tokens(), sources, offsets, weights)
    torch.testing.assert_close(runs.combine(_tokens()), sums)
