"""AOT against vectors of its release, and the choices that its budget leaves."""

from dataclasses import replace

import numpy as np
import official
import pytest
import torch

from tango_core.compressors.aot import AOT
from tango_core.types import VisualFeatures

CLIPS = ("blob1_27x27_24", "blob4_27x27_21", "pan4_27x27_23", "static4_27x27_22")


def _features(arrays):
    unpooled = torch.from_numpy(arrays["features27"])
    return VisualFeatures(
        tokens=torch.zeros(len(unpooled), 196, unpooled.shape[2]),
        grid=(14, 14),
        timestamps=torch.arange(len(unpooled), dtype=torch.float64),
        unpooled_tokens=unpooled,
        shallow_attention=torch.from_numpy(arrays["attn_shallow"]),
        deep_attention=torch.from_numpy(arrays["attn_deep"]),
    )


def _random(num_frames=8, seed=0):
    normal = torch.Generator().manual_seed(seed)
    return VisualFeatures(
        tokens=torch.zeros(num_frames, 196, 16),
        grid=(14, 14),
        timestamps=torch.arange(num_frames, dtype=torch.float64),
        unpooled_tokens=torch.randn(num_frames, 729, 16, generator=normal),
        shallow_attention=torch.rand(num_frames, 729, generator=normal),
        deep_attention=torch.rand(num_frames, 729, generator=normal),
    )


def _released(clip):
    """Methods with the options of the release's runs, and the positions, roles and tokens there."""
    arrays, configs = official.load3(f"aot_{clip}.npz")
    for name, facts in configs.items():
        method = AOT(
            1 / 2,
            anchors=facts["visual_token_num"],
            keep_ratio=facts["keep_ratio"],
            segment=int(arrays["segments"][0, 1]),
        )
        parts = (arrays[f"{name}/{part}"] for part in ("order", "role", "tokens"))
        yield method, _features(arrays), *parts


def _assert_close(ours, theirs):
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("clip", CLIPS)
def test_same_sequence_as_the_release(clip):
    for method, features, order, role, expected in _released(clip):
        positions, roles, tokens = method.release_sequence(features)
        assert positions.tolist() == order.tolist()
        assert roles.tolist() == role.tolist()
        _assert_close(tokens, expected)


@pytest.mark.parametrize("clip", CLIPS)
def test_tokens_come_once_and_by_position(clip):
    """The release without its unmerged copies, sorted."""
    for method, features, order, _, expected in _released(clip):
        video = method.compress(features)
        last = {int(place): row for row, place in enumerate(order)}  # merged ones come last
        assert video.indices.tolist() == sorted(last)
        _assert_close(video.tokens, expected[[last[place] for place in sorted(last)]])


@pytest.mark.parametrize("retention", [0.02, 0.05, 0.1, 0.25])
def test_the_number_of_anchors_follows_the_retention(retention):
    features = _random()
    kept = AOT(retention).compress(features).num_kept
    allowed = retention * 8 * 196
    assert kept <= allowed
    more = [AOT(retention, anchors=count) for count in range(18, 729, 18)]
    counts = [one.compress(features).num_kept for one in more]
    assert kept == max(count for count in counts if count <= allowed)


def test_every_frame_alone_without_merging_across_frames():
    features = _random(num_frames=3)
    whole = AOT(1 / 2, anchors=126, across_frames=False).compress(features)
    one = replace(
        features,
        tokens=features.tokens[:1],
        timestamps=features.timestamps[:1],
        unpooled_tokens=features.unpooled_tokens[:1],
        shallow_attention=features.shallow_attention[:1],
        deep_attention=features.deep_attention[:1],
    )
    alone = AOT(1 / 2, anchors=126).compress(one)
    count = alone.num_kept
    assert whole.indices[:count].tolist() == alone.indices.tolist()
