"""Merging: the weights of a cluster, and sums over bags and over runs of frames."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops import merging
from tango_core.ops.merging import (
    COMPARED,
    find_runs,
    gather_weighted,
    member_weights,
    most_similar,
)


@given(
    seed=st.integers(0, 10_000),
    num_points=st.integers(1, 40),
    beta=st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_weights_of_a_cluster_add_up_to_one_and_favour_its_centre(seed, num_points, beta):
    generator = torch.Generator().manual_seed(seed)
    num_centers = int(torch.randint(1, num_points + 1, (1,), generator=generator))
    centers = torch.randperm(num_points, generator=generator)[:num_centers].sort().values
    labels = torch.randint(num_centers, (num_points,), generator=generator)
    labels[centers] = torch.arange(num_centers)
    members = torch.ones(1, num_points, dtype=torch.bool)
    weights = member_weights(labels[None], centers[None], members, beta)[0]
    sums = torch.zeros(num_centers).index_add_(0, labels, weights)
    torch.testing.assert_close(sums, torch.ones(num_centers))
    assert (weights[centers] >= max(beta, 0) - 1e-6).all()
    assert (weights >= 0).all()


def test_padding_and_outsiders_weigh_nothing():
    labels, centers = torch.tensor([[0, 0, 1, 0]]), torch.tensor([[0, 2, 4]])
    members = torch.tensor([[True, True, True, False]])
    weights = member_weights(labels, centers, members, beta=0.0)
    assert weights.tolist() == [[0.75, 0.25, 1.0, 0.0]]


def test_half_precision_sums_are_float32():
    tokens = torch.full((300, 8), 1.0, dtype=torch.bfloat16)
    sums = gather_weighted(tokens, torch.arange(300), torch.tensor([0, 300]), torch.ones(300))
    assert sums.dtype == torch.float32
    assert sums.tolist() == [[300.0] * 8]  # bfloat16 stops counting at 256


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_sums_are_those_of_float32_whatever_the_sizes(dtype, monkeypatch):
    """Bags are made in parts: empty ones, several small ones, one that is larger than a part."""
    monkeypatch.setattr(merging, "HALF_ELEMENTS", 8 * 20)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(90, 8, generator=generator).to(dtype)
    offsets = torch.tensor([0, 0, 50, 53, 53, 60, 75, 99, 100])
    sources, weights = torch.randint(90, (100,), generator=generator), torch.rand(100)
    sums = gather_weighted(tokens, sources, offsets, weights)
    assert torch.equal(sums, gather_weighted(tokens.float(), sources, offsets, weights))


@pytest.mark.parametrize("num_rows", [0, 1, COMPARED + 3])
def test_the_most_similar_anchor_is_that_of_the_highest_cosine(num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    tokens = torch.randn(num_rows + 9, 6, generator=generator)
    tokens *= torch.rand(num_rows + 9, 1, generator=generator) + 0.1
    order = torch.randperm(num_rows + 9, generator=generator)
    anchors, rows = order[:9], order[9:]
    cosines = torch.cosine_similarity(tokens[rows][:, None], tokens[anchors], dim=-1)
    assert torch.equal(most_similar(tokens, rows, anchors), cosines.argmax(dim=-1))


def test_the_first_of_equal_anchors_is_taken():
    tokens = torch.tensor([[3.0, 4.0], [3.0, 4.0], [1.0, 1.0], [0.0, 0.0]])
    assert most_similar(tokens, torch.tensor([2, 3]), torch.tensor([0, 1])).tolist() == [0, 0]


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
    monkeypatch.setattr(merging, "CELLS", 2)
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
