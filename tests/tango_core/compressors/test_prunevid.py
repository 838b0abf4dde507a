"""PruneVid: scenes, static places and clusters, against their definitions."""

import numpy as np
import pytest

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip
from tango_core.compressors.prunevid import contiguous_scenes


def _compress(features, **options):
    return build_method("prunevid", **options).compressor.compress(features)


@pytest.mark.parametrize(
    ("labels", "lengths"),
    [
        ([4], [1]),
        ([0, 1, 2], [3]),
        ([0, 0, 0, 1, 1], [3, 2]),
        ([0, 0, 1, 0, 0], [5]),
        ([0, 0, 1, 2, 2], [3, 2]),
        ([0, 0, 1, 2, 2, 2], [2, 4]),
        ([0, 0, 0, 1, 1, 0], [3, 3]),
        ([0, 1, 1, 0, 0, 0], [3, 3]),
        ([0, 0, 1, 1, 0, 0], [2, 2, 2]),
        ([1, 0, 0, 2, 3, 4, 4], [5, 2]),
    ],
)
def test_only_the_longest_run_of_a_cluster_survives(labels, lengths):
    assert contiguous_scenes(labels) == lengths


def _naive_clusters(points, num_clusters):
    """Density peaks with 7 neighbours, the token itself included, by the definition."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) / np.sqrt(points.shape[1])
    density = np.exp(-(np.sort(distances, axis=1)[:, :7] ** 2).mean(axis=1))
    gaps = [
        distances[i][density > density[i]].min() if (density > density[i]).any() else np.inf
        for i in range(len(points))
    ]
    centers = np.sort(np.argsort(-(density * np.array(gaps)), kind="stable")[:num_clusters])
    labels = distances[:, centers].argmin(axis=1)
    return centers, np.stack([points[labels == c].mean(axis=0) for c in range(num_clusters)])


@pytest.mark.parametrize("seed", range(5))
def test_a_frame_is_clustered_by_density_and_averaged(seed):
    features = make_clip(num_frames=1, grid=(6, 6), kind="noise", seed=seed)
    centers, means = _naive_clusters(features.tokens[0].double().numpy(), 9)
    ours = _compress(features, retention=0.25)
    assert ours.indices.tolist() == centers.tolist()
    np.testing.assert_allclose(ours.tokens.numpy(), means, rtol=1e-5, atol=1e-6)


def test_a_scene_of_one_frame_has_no_static_places():
    """The release divides 0 by 0 there."""
    features = make_clip(num_frames=1, grid=(4, 4))
    assert _compress(features, retention=0.25).num_kept == 4


@pytest.mark.parametrize("num_frames", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("retention", [0.01, 0.1, 0.37, 0.8])
def test_keeps_exactly_its_share_of_a_moving_clip(num_frames, retention):
    features = make_clip(num_frames=num_frames, grid=(5, 7), kind="noise")
    expected = max(1, round(num_frames * 35 * retention))
    assert _compress(features, retention=retention).num_kept == expected
