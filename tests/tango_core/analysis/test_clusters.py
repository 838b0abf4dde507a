"""Connected pieces against SciPy; clusters that ST-RoPE holds together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import label

from tango_core.analysis.clusters import cluster_labels, connected_pieces, fragmentation
from tango_core.types import VisualFeatures


def by_scipy(labels):
    """Pieces of every cluster, and the share of its tokens in the largest."""
    pieces, shares = [], []
    for cluster in np.unique(labels):
        found, number = label(labels == cluster)
        pieces.append(number)
        shares.append(np.bincount(found.ravel())[1:].max() / (labels == cluster).sum())
    return pieces, shares


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 9, 9), (4, 6, 5), (5, 1, 7)])
@pytest.mark.parametrize("clusters", [1, 2, 5])
def test_pieces_are_those_of_scipy(shape, clusters):
    labels = np.random.default_rng(clusters).integers(0, clusters, shape)
    found, largest = fragmentation(torch.tensor(labels))
    pieces, shares = by_scipy(labels)
    assert found.tolist() == pieces
    np.testing.assert_allclose(largest, shares, rtol=1e-6)


def test_a_winding_piece_is_one():
    """A snake through the grid takes many rounds; its name is its first token."""
    labels = torch.ones(1, 21, 20, dtype=torch.int64)
    labels[0, 1::2] = 0
    labels[0, 1::4, -1] = 1
    labels[0, 3::4, 0] = 1
    assert set(connected_pieces(labels)[labels == 1].tolist()) == {0}


def checkerboard():
    """Two looks alternate over the frame, so similarity alone tears clusters apart."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(2, 48))
    at = np.indices((8, 8)).sum(axis=0) % 2
    tokens = looks[at].reshape(1, 64, 48) + 0.05 * rng.normal(size=(3, 64, 48))
    return VisualFeatures(
        torch.tensor(tokens, dtype=torch.float32), (8, 8), torch.arange(3, dtype=torch.float64)
    )


def test_st_rope_gives_fewer_pieces_where_looks_repeat():
    features = checkerboard()
    bare, rotated = (
        fragmentation(cluster_labels(features, slice(0, 3), 0.1, rotated=on))[0]
        for on in (False, True)
    )
    assert len(bare) == len(rotated) == 19  # a tenth of 192 tokens
    assert rotated.sum() < bare.sum()


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"must be in \(0, 1\], got 0"):
        cluster_labels(checkerboard(), slice(0, 1), 0, rotated=False)
