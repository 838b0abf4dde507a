"""FastVID against its two official releases, and the clips on which they fail."""

import official
import pytest

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
