"""FastVID against its two official releases, and the clips on which they fail."""

import numpy as np
import official
import pytest
import torch

from tango_core.compressors import build_method
from tango_core.compressors.contract.inputs import make_clip

FILES = ["fastvid_blob16_7.npz", "fastvid_static12_6.npz"]
SIGNALS = {"saliency": "p_attn", "frame_embeddings": "global_features"}


def _compress(features, **options):
    return build_method("fastvid", **options).compressor.compress(features)


def _one_scene(num_frames, grid, **options):
    """A clip that is never cut."""
    features = make_clip(num_frames=num_frames, grid=grid, kind="noise")
    return features, _compress(features, tau=-1.0, num_segments=1, **options)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("percent", [10, 15, 20])
class TestOfficialReleases:
    def test_same_as_llava_onevision(self, name, percent):
        arrays = official.load(name)
        ours = _compress(official.features(arrays, **SIGNALS), retention=percent / 100)
        case = f"r{percent}_ov"
        official.assert_same_tokens(ours, arrays[f"{case}/kept"], arrays[f"{case}/feat"])

    def test_same_as_llava_video(self, name, percent):
        arrays = official.load(name)
        features = official.features(arrays, **SIGNALS)
        ours = _compress(features, retention=percent / 100, variant="segment")
        kept, tokens = arrays[f"r{percent}_video/kept"], arrays[f"r{percent}_video/feat"]
        width = features.grid[1]
        rows, columns = kept // (width + 1), kept % (width + 1)  # its rows end with a newline
        is_token = columns < width
        official.assert_same_tokens(ours, (rows * width + columns)[is_token], tokens[is_token])


@pytest.mark.parametrize("variant", ["frame", "segment"])
@pytest.mark.parametrize("num_frames", range(1, 8))
def test_fewer_frames_than_segments_are_no_problem(num_frames, variant):
    features = make_clip(num_frames=num_frames, grid=(6, 6))
    ours = _compress(features, retention=0.25, variant=variant)
    assert ours.num_kept == num_frames * 9


@pytest.mark.parametrize("variant", ["frame", "segment"])
@pytest.mark.parametrize("num_frames", [4, 9, 32])
@pytest.mark.parametrize("retention", [0.3, 0.5, 0.9, 0.99])
def test_budgets_beyond_the_anchor_frames_find_room_in_others(num_frames, retention, variant):
    _, ours = _one_scene(num_frames, (7, 7), retention=retention, variant=variant)
    budget = num_frames * int(49 * retention)
    assert budget - num_frames <= ours.num_kept <= budget


def test_a_frame_budget_loses_what_does_not_divide_and_a_segment_budget_does_not():
    # 5 frames of 4 salient and 2 context tokens; 10 of the latter over 2 anchor frames, or of 3.
    for num_frames, lost in ((5, 0), (9, 18 % 3), (7, 14 % 2), (11, 22 % 3)):
        frame = _one_scene(num_frames, (8, 8), retention=0.1)[1]
        segment = _one_scene(num_frames, (8, 8), retention=0.1, variant="segment")[1]
        assert frame.num_kept == num_frames * 6 - lost
        assert segment.num_kept == num_frames * 6


def _naive_peaks(points, count):
    """Density peaks with 4 neighbours, the token itself included, by the definition; ascending."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) / np.sqrt(points.shape[1])
    density = np.exp(-(np.sort(distances, axis=1)[:, :4] ** 2).mean(axis=1))
    gaps = [
        distances[i][density > density[i]].min() if (density > density[i]).any() else np.inf
        for i in range(len(points))
    ]
    return np.sort(np.argsort(-(density * np.array(gaps)), kind="stable")[:count])


def _naive_merge(features, salient, anchors_per_frame, own_anchors_merge, beta=0.6):
    """One scene, one anchor at a time: {position: merged token}."""
    num_frames, num_cells, dim = features.tokens.shape
    flat = features.tokens.double().numpy().reshape(-1, dim)
    order = np.argsort(-features.saliency.numpy(), axis=1, kind="stable")
    rest = [np.sort(order[frame, salient[frame] :]) for frame in range(num_frames)]
    pool = np.concatenate([cells + frame * num_cells for frame, cells in enumerate(rest)])
    units = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    merged = {}
    for frame, count in anchors_per_frame.items():
        peaks = _naive_peaks(flat[rest[frame] + frame * num_cells], count)
        anchors = rest[frame][peaks] + frame * num_cells
        absorbed = pool if own_anchors_merge else np.setdiff1d(pool, anchors)
        nearest = (units[absorbed] @ units[anchors].T).argmax(axis=1)
        for number, anchor in enumerate(anchors):
            members = absorbed[nearest == number]
            weight = max(1 / (len(members) + 1), beta)
            mean = flat[members].mean(axis=0) if len(members) else 0.0
            merged[int(anchor)] = weight * flat[anchor] + (1 - weight) * mean
    return merged


@pytest.mark.parametrize(
    ("variant", "salient", "anchors"),
    [
        ("frame", [4] * 11, {10: 7, 6: 7, 2: 7}),
        # int(66 * 0.4) = 26 context tokens, so 40 salient ones.
        ("segment", [4] * 7 + [3] * 4, {10: 9, 6: 9, 2: 8}),
        # int(66 * 0.3) = 19 context tokens, so 47 salient ones.
        ("segment", [5] * 3 + [4] * 8, {10: 7, 6: 6, 2: 6}),
    ],
)
def test_several_anchor_frames_each_absorb_the_whole_segment(variant, salient, anchors):
    ratio = 0.4 if salient[0] == 4 else 0.3
    features, ours = _one_scene(11, (8, 8), retention=0.1, variant=variant, context_ratio=ratio)
    expected = _naive_merge(features, salient, anchors, own_anchors_merge=variant == "frame")
    tokens = dict(zip(ours.indices.tolist(), ours.tokens.numpy(), strict=True))
    assert len(tokens) == sum(salient) + sum(anchors.values())
    assert expected.keys() <= tokens.keys()
    for position, token in expected.items():
        np.testing.assert_allclose(tokens[position], token, rtol=1e-4, atol=1e-5)


def test_anchors_sit_in_the_last_frame_and_every_stride_before_it():
    features, ours = _one_scene(10, (8, 8), retention=0.1)
    salient = features.saliency.topk(4, dim=1).indices + torch.arange(10)[:, None] * 64
    anchors = sorted(set(ours.indices.tolist()) - set(salient.flatten().tolist()))
    assert {index // 64 for index in anchors} == {9, 5, 1}


def test_without_context_it_is_plain_top_k():
    features, ours = _one_scene(6, (5, 5), retention=0.2, context_ratio=0.0)
    best = features.saliency.topk(5, dim=1).indices + torch.arange(6)[:, None] * 25
    assert torch.equal(ours.indices, best.flatten().sort().values)
    assert torch.equal(ours.tokens, features.tokens.flatten(0, 1)[ours.indices])


def test_beta_one_leaves_anchors_unmerged():
    features, ours = _one_scene(6, (5, 5), retention=0.4, beta=1.0)
    torch.testing.assert_close(ours.tokens, features.tokens.flatten(0, 1)[ours.indices])


@pytest.mark.parametrize("variant", ["frame", "segment"])
def test_frames_of_fewer_than_four_tokens_are_no_problem(variant):
    for side in (1, 2):
        _, ours = _one_scene(8, (side, side), retention=0.5, variant=variant)
        assert 1 <= ours.num_kept <= 8 * max(1, side * side // 2)


def test_a_frozen_clip_is_still_cut_into_eight_segments():
    features = make_clip(num_frames=16, grid=(6, 6), kind="static")
    compressor = build_method("fastvid", retention=0.2).compressor
    budgets = [compressor._budget(length, 36) for length in (1, 9)]
    ours = compressor.compress(features)
    # Ties cut as early as possible: seven segments of one frame, one of nine.
    assert ours.num_kept == sum(sum(a) + sum(b) for a, b in (*[budgets[0]] * 7, budgets[1]))
