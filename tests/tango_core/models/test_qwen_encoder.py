"""Qwen2.5-VL's vision half against the stock tower, and its signals against plain computations."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from qwen_checkpoints import MULTIPLE, WIDTH, build_qwen, save_qwen
from torch import nn
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tango_core.models import describe_model, load_encoder
from tango_core.models.qwen_preprocessing import pair_frames, to_patches
from tango_core.models.qwen_tower import QwenTowerOutput, mean_query_saliency
from tango_core.types import ClipSource, VideoFrames

NAME = "qwen2.5-vl-7b"
GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})
SIZES = [(1, 1), (4, 4), (3, 10), (5, 9), (8, 2)]  # tokens; windows are 4 x 4
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(scope="module")
def qwen():
    return build_qwen()


@pytest.fixture(scope="module")
def encoder(qwen, tmp_path_factory):
    return load_encoder(NAME, str(save_qwen(qwen, tmp_path_factory.mktemp("qwen"))))


def clip(num_frames, grid, seed=0):
    shape = (num_frames, grid[0] * MULTIPLE, grid[1] * MULTIPLE, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return VideoFrames(pixels, np.arange(num_frames) * 0.5)


def patches_of(frames, grid):
    """Patches one by one: pairs of frames, tokens by rows, 2 x 2 patches of 4 pixels each."""
    values = (torch.tensor(frames.pixels).float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    if len(values) % 2:
        values = torch.cat([values, values[-1:]])
    rows = [
        values[2 * t : 2 * t + 2, top : top + 4, left : left + 4].permute(3, 0, 1, 2).flatten()
        for t in range(len(values) // 2)
        for h in range(grid[0])
        for w in range(grid[1])
        for top in (8 * h, 8 * h + 4)
        for left in (8 * w, 8 * w + 4)
    ]
    return torch.stack(rows), torch.tensor([[len(values) // 2, 2 * grid[0], 2 * grid[1]]])


def windowed(grid):
    """Raster positions of a frame's tokens, window by window of 4 x 4."""
    return [
        h * grid[1] + w
        for top in range(0, grid[0], 4)
        for left in range(0, grid[1], 4)
        for h in range(top, min(top + 4, grid[0]))
        for w in range(left, min(left + 4, grid[1]))
    ]


def last_block(qwen, frames, grid):
    """Queries, keys and unrotated keys of the last block: (T, L, 4, heads, d), raster order."""
    attention, seen = qwen.model.visual.blocks[-1].attn, {}

    def look(module, args, kwargs):
        seen["hidden"], seen["rotary"] = args[0], kwargs["position_embeddings"]

    patches, thw = patches_of(frames, grid)
    handle = attention.register_forward_pre_hook(look, with_kwargs=True)
    with torch.no_grad():
        qwen.model.visual(patches, grid_thw=thw)
        packed = attention.qkv(seen["hidden"]).view(len(patches), 3, attention.num_heads, -1)
    handle.remove()

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        cosine, sine = (part[:, None] for part in seen["rotary"])
        return x * cosine + torch.cat([-second, first], dim=-1) * sine

    result = []
    for part in (rotate(packed[:, 0]), rotate(packed[:, 1]), packed[:, 1]):
        tokens = part.reshape(int(thw[0, 0]), math.prod(grid), 4, *part.shape[1:])
        raster = torch.empty_like(tokens)
        raster[:, windowed(grid)] = tokens
        result.append(raster)
    return result


@pytest.mark.parametrize("num_frames", [1, 2, 5])
@pytest.mark.parametrize("grid", SIZES, ids=str)
@torch.no_grad()
def test_tokens_are_the_stock_video_features(qwen, encoder, num_frames, grid):
    frames = clip(num_frames, grid)
    features = encoder.encode(frames)
    patches, thw = patches_of(frames, grid)
    (expected,) = qwen.model.get_video_features(patches, thw).pooler_output
    assert features.grid == grid
    assert features.tokens.shape == ((num_frames + 1) // 2, math.prod(grid), WIDTH)
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
    groups = torch.tensor(pair_frames(frames.pixels, 2))
    patches = to_patches(groups, encoder.layout, *encoder._normalisation)
    assert stock["image_grid_thw"].tolist() == [[1, 6, 10]]
    torch.testing.assert_close(patches, stock["pixel_values"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["sharded", "hub", "modules"])
def test_every_layout_on_disk_gives_the_same_tokens(qwen, encoder, tmp_path, layout):
    path = save_qwen(qwen, tmp_path, layout)
    frames = clip(2, (3, 5))
    assert torch.equal(
        load_encoder(NAME, str(path)).encode(frames).tokens, encoder.encode(frames).tokens
    )


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_saliency_is_the_mean_query_s_attention_in_raster_order(qwen, encoder, grid):
    frames = clip(4, grid)
    queries, keys, _ = last_block(qwen, frames, grid)
    query, key = queries.mean(dim=(1, 2)), keys.mean(dim=2)
    logits = torch.einsum("thd,tlhd->thl", query, key) / math.sqrt(key.shape[-1])
    expected = logits.softmax(dim=-1).mean(dim=1)
    saliency = encoder.encode(frames, frozenset({"saliency"})).saliency
    torch.testing.assert_close(saliency, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("grid", SIZES, ids=str)
def test_attention_is_what_all_patches_of_the_frame_pay_to_a_token(qwen, encoder, grid):
    frames = clip(4, grid)
    queries, keys, _ = (part.flatten(1, 2) for part in last_block(qwen, frames, grid))
    logits = torch.einsum("tphd,tqhd->thpq", queries, keys) / math.sqrt(keys.shape[-1])
    received = logits.softmax(dim=-1).mean(dim=(1, 2)).view(2, -1, 4).sum(dim=-1)
    attention = encoder.encode(frames, frozenset({"attention"})).attention
    torch.testing.assert_close(attention, received, rtol=1e-4, atol=1e-6)


def test_attention_does_not_depend_on_how_many_heads_are_in_memory(encoder, monkeypatch):
    frames = clip(2, (3, 5))
    whole = encoder.encode(frames, frozenset({"attention"})).attention
    monkeypatch.setattr("tango_core.models.qwen_tower._PROBABILITIES_AT_ONCE", 1)
    one_by_one = encoder.encode(frames, frozenset({"attention"})).attention
    torch.testing.assert_close(one_by_one, whole, rtol=1e-5, atol=1e-7)


def test_keys_are_means_over_heads_and_patches_without_places(qwen, encoder):
    frames, grid = clip(4, (5, 9)), (5, 9)
    _, _, keys = last_block(qwen, frames, grid)
    got = encoder.encode(frames, frozenset({"keys"})).keys
    torch.testing.assert_close(got, keys.mean(dim=(2, 3)), rtol=1e-4, atol=1e-5)


def test_frame_embeddings_are_means_of_the_tokens(encoder):
    features = encoder.encode(clip(4, (3, 5)), frozenset({"frame_embeddings"}))
    torch.testing.assert_close(features.frame_embeddings, features.tokens.mean(dim=1))


def test_saliency_of_the_release_s_queries_and_keys():
    """Golden vectors are in window order: the identity as raster order leaves them there."""
    with np.load(GOLDEN / "unit_saliency_qwen25.npz") as data:
        golden = {key: torch.from_numpy(data[key]) for key in data.files}
    num_patches, heads, _ = golden["q"].shape
    num_frames = int(golden["grid_thw"][0])
    packed = torch.stack([golden["q"], golden["k"], golden["k"]], dim=1).flatten(1)
    attention = SimpleNamespace(qkv=nn.Identity(), num_heads=heads)
    output = QwenTowerOutput(
        tokens=torch.empty(num_frames, num_patches // num_frames // 4, 1),
        block_input=packed,
        rotary=(golden["cos"], golden["sin"]),
        raster=torch.arange(num_patches // 4),
        block=SimpleNamespace(norm1=nn.Identity(), attn=attention),
        merge=4,
    )
    torch.testing.assert_close(mean_query_saliency(output), golden["p_attn"], rtol=1e-5, atol=1e-7)


def test_long_clips_give_the_same_as_their_parts(encoder):
    frames = clip(40, (3, 5))
    whole = encoder.encode(frames, SIGNALS)
    part = encoder.encode(VideoFrames(frames.pixels[30:], frames.timestamps[30:]), SIGNALS)
    for name in ("tokens", *sorted(SIGNALS)):
        expected = getattr(part, name)
        assert len(expected) == 5
        torch.testing.assert_close(getattr(whole, name)[15:], expected, rtol=1e-4, atol=1e-4)


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


def test_an_odd_last_frame_is_repeated(encoder):
    frames = clip(3, (3, 5))
    twice = VideoFrames(
        np.concatenate([frames.pixels, frames.pixels[-1:]]), np.array([0.0, 1.0, 2.0, 2.0])
    )
    assert torch.equal(encoder.encode(frames).tokens, encoder.encode(twice).tokens)


def test_mean_and_deviation_come_from_the_checkpoint(qwen, encoder, tmp_path):
    path = save_qwen(qwen, tmp_path)
    content = {"image_mean": list(MEAN), "image_std": list(STD), "rescale_factor": 1 / 255}
    (path / "preprocessor_config.json").write_text(json.dumps(content))
    frames = clip(2, (2, 2))
    expected = encoder.encode(frames).tokens
    assert torch.equal(load_encoder(NAME, str(path)).encode(frames).tokens, expected)
    content["image_mean"] = [0.1, 0.2, 0.3]
    (path / "preprocessor_config.json").write_text(json.dumps(content))
    other = load_encoder(NAME, str(path)).encode(frames).tokens
    assert not torch.allclose(other, expected, atol=1e-2)


def test_only_the_signals_asked_for_are_computed(encoder):
    frames = VideoFrames(clip(2, (2, 2)).pixels, np.zeros(2), source=ClipSource(3.0, 360))
    features = encoder.encode(frames, frozenset({"keys"}))
    assert features.keys.shape == (1, 4, 16)
    assert (features.attention, features.saliency, features.frame_embeddings) == (None,) * 3
    assert (features.sinks, features.source) == ((), ClipSource(3.0, 360))
    with pytest.raises(ValueError, match="cannot compute probe; it provides attention, frame_"):
        encoder.encode(frames, frozenset({"probe"}))


def test_encoding_twice_gives_the_same_bytes(encoder):
    first, second = (encoder.encode(clip(3, (5, 3)), SIGNALS) for _ in range(2))
    for name in ("tokens", *SIGNALS):
        assert torch.equal(getattr(first, name), getattr(second, name))


def test_frames_that_are_no_whole_number_of_tokens_are_refused(encoder):
    frames = VideoFrames(np.zeros((2, 16, 20, 3), np.uint8), np.zeros(2))
    with pytest.raises(ValueError, match="multiples of 8 pixels, got 16 x 20"):
        encoder.encode(frames)


def test_the_encoder_holds_the_tower_and_nothing_else(qwen, encoder):
    expected = sum(value.numel() for value in qwen.model.visual.parameters())
    assert sum(value.numel() for value in encoder.tower.parameters()) == expected
    for name, buffer in encoder.tower.named_buffers():
        assert torch.equal(buffer, qwen.model.visual.get_buffer(name)), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_close_to_single(encoder, dtype):
    half = load_encoder(NAME, encoder.spec.path, dtype=dtype).encode(clip(2, (4, 5)), SIGNALS)
    exact = encoder.encode(clip(2, (4, 5)), SIGNALS)
    assert half.tokens.dtype == getattr(torch, dtype)
    assert half.saliency.dtype == torch.float32
    scale = float(exact.tokens.abs().max())
    assert float((half.tokens.float() - exact.tokens).abs().max()) < 0.05 * scale


class TestDescription:
    def test_frames_have_the_publication_s_size(self, qwen, tmp_path):
        path = save_qwen(qwen, tmp_path)
        frames = describe_model(NAME, str(path)).frames
        assert (frames.num_frames, frames.sampling, frames.size) == (32, "round", None)
        assert frames.multiple == MULTIPLE
        assert (frames.min_pixels, frames.max_pixels) == (128 * 64, 256 * 64)
        small = describe_model(NAME, str(path), max_pixels=1000).frames
        assert (small.min_pixels, small.max_pixels) == (1000, 1000)

    def test_positions_are_no_part_of_the_cache_s_identity_and_sizes_are(self, encoder):
        path = encoder.spec.path
        plain = describe_model(NAME, path)
        other = describe_model(NAME, path, position_rule="hf5", seconds_per_grid=0.5)
        assert (other.position_rule, other.seconds_per_grid) == ("hf5", 0.5)
        assert other.identity() == plain.identity()
        assert describe_model(NAME, path, max_pixels=640).identity() != plain.identity()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"position_rule": "hf4"}, "model.position_rule must be one of hf450, hf5, got 'hf4'"),
            ({"seconds_per_grid": 0}, "model.seconds_per_grid must be a positive number, got 0"),
            ({"max_pixels": 63}, "model.max_pixels must be at least .* 64, got 63"),
            ({"saliency_from": "a/b"}, "model.saliency_from is no setting of model qwen2.5-vl-7b"),
            ({"pooling": "average"}, "model.pooling is no setting of model qwen2.5-vl-7b"),
        ],
    )
    def test_wrong_options_name_the_setting(self, encoder, options, words):
        with pytest.raises(ValueError, match=words):
            describe_model(NAME, encoder.spec.path, **options)

    def test_other_families_refuse_its_settings_and_checkpoints(self, encoder, checkpoint):
        with pytest.raises(ValueError, match="position_rule is no setting of model llava-onevis"):
            describe_model("llava-onevision-7b", str(checkpoint), position_rule="hf5")
        with pytest.raises(ValueError, match="holds a 'llava_onevision' model, not 'qwen2_5_vl'"):
            describe_model(NAME, str(checkpoint))

    def test_needs_no_weights(self, qwen, tmp_path):
        path = save_qwen(qwen, tmp_path, "hub")
        (path / "model.safetensors").write_bytes(b"never opened")
        shape = describe_model(NAME, str(path)).decoder
        assert (shape.num_layers, shape.hidden_size, shape.num_heads) == (4, WIDTH, 4)
        assert (shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (2, 12, 288)
