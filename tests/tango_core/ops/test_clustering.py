"""DPC-KNN: official vectors, invariances, and the rules for ties."""

import json

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR

from tango_core.ops.clustering import (
    assign_to_centers,
    density_peaks,
    squared_distances,
)

GOLDEN = GOLDEN_DIR


def _points(num_groups, num_points, dim, seed=0):
    return torch.randn(num_groups, num_points, dim, generator=torch.Generator().manual_seed(seed))


def dpc_knn(points, num_centers, num_neighbors=7):
    return density_peaks(squared_distances(points), num_centers, num_neighbors)


@pytest.mark.parametrize("case", ["a", "b", "c", "tiny", "k3"])
def test_centres_and_their_order_are_those_of_the_release(case):
    with np.load(GOLDEN / "unit_dpc_knn.npz") as data:
        points = torch.from_numpy(data[f"{case}/x"])
        expected = data[f"{case}/centers_topk_order"].tolist()
        meta = json.loads(str(data["meta"]))[case]
    assert dpc_knn(points, meta["K"], meta["k"]).tolist() == expected


def test_points_outside_the_group_change_nothing():
    points = _points(2, 50, 8)
    members = torch.ones(2, 50, dtype=torch.bool)
    members[:, 5::7] = False
    inside = members[0].nonzero()[:, 0]
    masked = density_peaks(squared_distances(points), 6, members=members)
    assert torch.equal(masked, inside[dpc_knn(points[:, inside], 6)])


def test_equal_scores_go_to_the_lowest_position():
    pair = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    assert dpc_knn(pair, 1).tolist() == [[0]]
    assert dpc_knn(torch.ones(1, 6, 4), 3).tolist() == [[0, 1, 2]]


def test_more_centres_than_points_is_an_error():
    with pytest.raises(ValueError, match="cannot pick 4 centres among 3 points"):
        dpc_knn(_points(1, 3, 4), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_distances_are_symmetric_to_the_bit_and_zero_to_themselves(dtype):
    distances = squared_distances(_points(3, 33, 64).to(dtype))
    assert distances.dtype == torch.float32
    assert torch.equal(distances, distances.mT)
    assert not distances.diagonal(dim1=1, dim2=2).any()
    exact = torch.cdist(
        _points(3, 33, 64).to(dtype).double(), _points(3, 33, 64).to(dtype).double()
    )
    torch.testing.assert_close(distances.double(), exact**2, rtol=1e-5, atol=1e-4)


def test_every_point_goes_to_its_nearest_centre_and_every_centre_to_itself():
    points = _points(2, 40, 6)
    points[:, 20] = points[:, 3]  # an exact copy among the centres
    centers = torch.tensor([[3, 9, 20, 31], [3, 20, 40, 40]])
    labels = assign_to_centers(squared_distances(points), centers)
    assert labels[0, [3, 9, 20, 31]].tolist() == [0, 1, 2, 3]
    assert labels[1, [3, 20]].tolist() == [0, 1]
    nearest = torch.cdist(points[0], points[0, centers[0]]).argmin(dim=1)
    others = torch.ones(40, dtype=torch.bool)
    others[centers[0]] = False
    assert torch.equal(labels[0, others], nearest[others])
    assert labels[1].max() == 1
