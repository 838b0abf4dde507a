"""Merging: the weights of a cluster, and sums over bags."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tango_core.ops import merging
from tango_core.ops.merging import (
    COMPARED,
    cluster_sums,
    gather_weighted,
    member_weights,
    most_similar,
)


def merge_clusters(tokens, labels, centers, beta):
    """(C, D) merged tokens of one group, as Tango puts its two operations together."""
    members = torch.ones(1, len(labels), dtype=torch.bool)
    weights = member_weights(labels[None], centers[None], members, beta)[0]
    return cluster_sums(tokens, labels, len(centers), weights)


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


@pytest.mark.parametrize(("size", "expected"), [(1, 1.0), (2, 0.8), (5, 0.68)])
def test_the_centre_weighs_three_fifths_and_its_share_of_the_mean(size, expected):
    labels = torch.zeros(1, size, dtype=torch.int64)
    members = torch.ones(1, size, dtype=torch.bool)
    weights = member_weights(labels, torch.tensor([[size - 1]]), members, beta=0.6)
    assert float(weights[0, -1]) == pytest.approx(expected)


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 20.0), (0.6, 12.0), (1.0, 0.0)])
def test_a_centre_is_blended_with_the_mean_of_its_cluster(beta, expected):
    tokens = torch.tensor([[0.0], [30.0], [60.0]])
    merged = merge_clusters(tokens, torch.zeros(3).long(), torch.tensor([0]), beta)
    assert merged.item() == pytest.approx(expected, abs=1e-5)


def test_clusters_do_not_mix_and_keep_the_order_of_their_centres():
    tokens = torch.eye(6)
    labels, centers = torch.tensor([1, 0, 0, 1, 2, 1]), torch.tensor([2, 0, 4])
    merged = merge_clusters(tokens, labels, centers, beta=0.6)
    means = torch.stack([tokens[[1, 2]].mean(0), tokens[[0, 3, 5]].mean(0), tokens[4]])
    expected = 0.6 * tokens[centers] + 0.4 * means
    torch.testing.assert_close(merged, expected)


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


def test_sums_of_clusters_take_their_rows_from_anywhere():
    tokens = torch.tensor([[1.0], [10.0], [100.0]])
    labels, weights = torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 3.0])
    assert cluster_sums(tokens, labels, 4, weights).flatten().tolist() == [20, 0, 301, 0]
    sources = torch.tensor([1, 1, 0])
    sums = cluster_sums(tokens, labels, 4, weights, sources=sources)
    assert sums.flatten().tolist() == [20, 0, 13, 0]


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
