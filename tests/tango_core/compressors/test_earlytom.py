"""EarlyTom, in the tower and behind it, against vectors of its release on a tiny SigLIP."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_files import GOLDEN3_DIR
from llava_checkpoints import build_llava, save_llava

from tango_core.compressors.earlytom import EarlyTom
from tango_core.models import load_encoder
from tango_core.types import VideoFrames

NAME = "llava-onevision-7b"
NEEDS = frozenset({"merged_attention", "tower_tokens"})
ARRAYS = dict(np.load(GOLDEN3_DIR / "earlytom.npz"))
CASES = json.loads(str(ARRAYS["meta"]))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A LLaVA model with the tower of the release's run."""
    model = build_llava(num_blocks=5)
    tower = model.model.vision_tower
    weights = {
        name.removeprefix("weights/vision_model."): torch.from_numpy(value)
        for name, value in ARRAYS.items()
        if name.startswith("weights/") and ".head." not in name
    }
    tower.load_state_dict(weights)
    return str(save_llava(model, tmp_path_factory.mktemp("llava")))


def encode(checkpoint, case, needs=NEEDS):
    setting = {f"merge_{name}": CASES[case][name] for name in ("threshold", "window", "momentum")}
    encoder = load_encoder(NAME, checkpoint, merge_layers=CASES[case]["layers"], **setting)
    pixels = ARRAYS[f"{case}/pixels"]
    return encoder.encode(VideoFrames(pixels, np.arange(float(len(pixels)))), needs)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_tower_and_selection_are_those_of_the_release(checkpoint, case):
    features = encode(checkpoint, case)
    groups = features.frame_map[:, 1]
    bounds = [torch.nonzero(groups == group)[[0, -1], 0].tolist() for group in groups.unique()]
    assert bounds == ARRAYS[f"{case}/groups"].tolist()
    assert len(features.tokens) == len(ARRAYS[f"{case}/features"])
    as_released = replace(features, tokens=features.tower_tokens)
    for retention in (0.1, 0.25, 0.5):
        video = EarlyTom(retention).compress(as_released)
        expected = torch.from_numpy(ARRAYS[f"{case}/selected_{retention}"])
        torch.testing.assert_close(video.tokens, expected, rtol=1e-4, atol=1e-5)


def test_positions_are_those_of_the_frames_of_the_clip(checkpoint):
    features = encode(checkpoint, 0)
    frames = features.frame_map[:, 0]
    assert len(features.tokens) < 8
    assert frames.tolist() == sorted(set(frames.tolist()))
    video = EarlyTom(0.5).compress(features)
    assert video.grid == (8, 4, 4)
    assert torch.equal(video.timestamps, torch.arange(8.0, dtype=torch.float64))
    assert set((video.indices // 16).tolist()) == set(frames.tolist())
    plan = EarlyTom(0.5).plan(features)
    assert torch.equal(plan.apply(features.tokens).tokens, video.tokens)


def test_the_share_is_of_the_tokens_before_merging(checkpoint):
    features = encode(checkpoint, 0)
    total = 8 * 16
    for retention in (0.1, 0.25):
        kept = EarlyTom(retention).compress(features).num_kept
        assert abs(kept - retention * total) <= len(features.tokens), "rounded once per frame"
    assert EarlyTom(0.99).compress(features).num_kept == features.tokens.shape[:2].numel()


def test_batches_of_frames_change_nothing_but_rounding(checkpoint):
    pixels = ARRAYS["3/pixels"]
    frames = VideoFrames(pixels, np.arange(float(len(pixels))))
    one, all_ = (
        load_encoder(NAME, checkpoint, merge_layers="0,2", encode_batch=size).encode(frames)
        for size in (1, 16)
    )
    assert torch.equal(one.frame_map, all_.frame_map)
    torch.testing.assert_close(one.tokens, all_.tokens, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge_layers": "one"}, "must be ascending"),
        ({"merge_layers": "2,1"}, "must be ascending"),
        ({"merge_layers": "4"}, "blocks of 0 to 3"),
        ({"merge_layers": "1", "merge_window": 1}, "2 or larger"),
        ({"merge_layers": "1", "merge_threshold": 1.5}, r"in \[-1, 1\]"),
        ({"merge_layers": "1", "merge_momentum": 0.0}, r"in \(0, 1\]"),
    ],
)
def test_wrong_options_are_one_line(checkpoint, options, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(NAME, checkpoint, **options)
