"""A small Qwen2.5-VL: the stock model, its checkpoint, and both halves of it."""

import json
import math

import clips
import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from PIL import Image
from qwen_by_hand import (
    ASKED,
    GRIDS,
    NAME,
    reference_positions,
    some,
    whole,
)
from qwen_checkpoints import MULTIPLE, VIDEO_PAD
from qwen_frames import clip, normalised, patches_of
from releases import PROTOCOLS
from rounding import assert_equal_but_for_rounding
from small_families import family_fixtures
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.towers.patch_tower import pair_frames
from tango_core.types import Question, VideoFrames
from tango_core.video import FrameSpec, decode_frames

qwen, qwen_checkpoint, encoder, model, endless = family_fixtures("qwen2.5-vl-7b")


@torch.no_grad()
def test_fewer_pixels_are_the_stock_features_of_smaller_frames(qwen, qwen_checkpoint):
    file = str(clips.clip("variable_rate.mp4"))
    height, width = decode_frames(file, FrameSpec(1)).pixels.shape[1:3]
    whole = describe_model(NAME, qwen_checkpoint, num_frames=4)
    smaller = load_encoder(NAME, qwen_checkpoint, num_frames=4, max_pixels=64 * MULTIPLE**2)
    assert (whole.options.input_size(), smaller.spec.options.input_size()) == (
        "",
        f"max_pixels={64 * MULTIPLE**2}",
    )
    frames = decode_frames(file, smaller.spec.frames)
    pixels = 64 * MULTIPLE**2
    size = smart_resize(height, width, MULTIPLE, min_pixels=pixels, max_pixels=pixels)
    grid = (size[0] // MULTIPLE, size[1] // MULTIPLE)
    features = smaller.encode(frames)
    patches, thw = patches_of(normalised(frames), grid)
    (expected,) = qwen.model.get_video_features(patches, thw).pooler_output
    assert features.grid == grid
    assert math.prod(grid) <= 64
    scale = float(expected.abs().max())
    torch.testing.assert_close(
        features.tokens.flatten(0, 1), expected, rtol=1e-5, atol=1e-5 * scale
    )


def test_patches_of_a_still_are_those_of_the_stock_processor(encoder):
    frames = clip(1, (3, 5))
    processor = Qwen2VLImageProcessorPil(
        do_resize=False, patch_size=4, merge_size=2, temporal_patch_size=2
    )
    stock = processor(Image.fromarray(frames.pixels[0]), return_tensors="pt")
    patches = encoder._patches(torch.tensor(pair_frames(frames.pixels, 2)))
    assert stock["image_grid_thw"].tolist() == [[1, 6, 10]]
    # A scaling, a difference and a quotient.
    assert_equal_but_for_rounding(patches, stock["pixel_values"], 4)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([0, 1, 2, 3], [0, 3]),  # not the means of the pairs, 0.5 and 2.5
        ([0, 1, 3, 6, 8, 9], [0, 4.5, 9]),
        ([0, 1, 5], [0, 5]),  # the frame repeated to fill the pair has no time of its own
        ([7], [7]),
    ],
)
def test_timestamps_run_from_the_first_frame_to_the_last(encoder, seconds, expected):
    pixels = np.zeros((len(seconds), MULTIPLE, MULTIPLE, 3), np.uint8)
    features = encoder.encode(VideoFrames(pixels, np.array(seconds, dtype=np.float64)))
    assert features.timestamps.tolist() == expected


def test_frames_have_the_publication_s_size(qwen_checkpoint):
    frames = describe_model(NAME, qwen_checkpoint).frames
    assert (frames.num_frames, frames.sampling, frames.size) == (32, "round", None)
    assert frames.multiple == MULTIPLE
    assert (frames.min_pixels, frames.max_pixels) == (128 * 64, 256 * 64)
    small = describe_model(NAME, qwen_checkpoint, max_pixels=1000).frames
    assert (small.min_pixels, small.max_pixels) == (1000, 1000)
    area = describe_model(NAME, qwen_checkpoint, frame_area=448 * 448).frames
    assert area.frame_size(360, 640, 8) == area.frame_size(1080, 1920, 8) == (336, 592)


pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.mark.parametrize("seconds", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions_of_transformers_5(qwen, qwen_checkpoint, grid, seconds):
    model = load_language_model(
        NAME, qwen_checkpoint, position_rule="hf5", seconds_per_grid=seconds
    )
    prompt = model.layout.lay_out(whole(grid), ASKED)
    ids = torch.tensor([[*prompt.spans[0].ids, *[VIDEO_PAD] * math.prod(grid), *prompt.question]])
    stock, _ = qwen.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
        video_grid_thw=torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]]),
        second_per_grid_ts=torch.tensor([seconds]),
    )
    assert torch.equal(prompt.positions, stock[:, 0])


@pytest.mark.parametrize(("rule", "gap"), [("hf450", 31), ("hf5", 16)])
def test_text_behind_the_publications_clip(qwen_checkpoint, rule, gap):
    model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
    prompt = model.layout.lay_out(some((16, 16, 16), 10), ASKED)
    assert (
        prompt.positions[:, prompt.prefix_length].tolist() == [len(prompt.spans[0].ids) + gap] * 3
    )


@pytest.mark.parametrize("part", [1, 3], ids=["whole", "pruned"])
@pytest.mark.parametrize("rule", ["hf450", "hf5"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_tokens_and_text_stand_where_they_do_in_the_whole_clip(qwen_checkpoint, rule, grid, part):
    model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
    video = some(grid, math.prod(grid) // part)
    prompt = model.layout.lay_out(video, ASKED)
    left, right = len(prompt.spans[0].ids), len(prompt.question)
    full = reference_positions(left, grid, right, rule)
    total = left + math.prod(grid)
    keep = [*range(left), *(video.indices + left).tolist(), *range(total, total + right)]
    assert torch.equal(prompt.positions, full[:, keep])


GOLDEN = json.loads((GOLDEN_DIR / "prompts.json").read_text(encoding="utf-8"))


QUESTION = Question(
    "q", "What does the man hold?", ("A cup.", "A bag.", "A book.", "A pen."), answer=1
)


@pytest.mark.parametrize("benchmark", sorted(PROTOCOLS))
def test_conversations_are_the_published_ones_byte_for_byte(model, benchmark):
    prompt = model.layout.lay_out(
        some((2, 2, 2), 3), PROTOCOLS[benchmark]["vlmevalkit"].render(QUESTION)
    )
    ids = [*prompt.spans[0].ids, VIDEO_PAD, *prompt.question]
    text = model.layout.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == GOLDEN["vlmevalkit"][benchmark]["qwen2_5_vl"]
    assert list(model.layout.tokenizer(text).input_ids) == ids
