"""LLaVA-OneVision's tokens, signals and traces against stock modules; files of its checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from llava_checkpoints import IMAGE_SIZE, WIDTH, build_llava, save_llava
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    LlavaOnevisionImageProcessorPil,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.llava.encoder import PoolingHead, run_tower
from tango_core.ops.saliency import pool_grid
from tango_core.types import CompressedVideo, Prompt, VideoFrames

NAME = "llava-onevision-7b"


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return load_encoder(NAME, str(checkpoint))


def normalised(frames: VideoFrames) -> torch.Tensor:
    values = torch.tensor(frames.pixels).permute(0, 3, 1, 2).float()
    return (values * (1 / 255) - 0.5) / 0.5


@pytest.mark.parametrize("layer", [-1, -2])
@torch.no_grad()
def test_tokens_are_the_stock_video_features(tmp_path, frames, layer):
    stock = build_llava(feature_layer=layer)
    path = str(save_llava(stock, tmp_path))
    tokens = load_encoder(NAME, path).encode(frames).tokens
    expected = stock.model.get_video_features(normalised(frames)[None]).pooler_output
    assert tokens.shape == (3, 16, WIDTH)
    torch.testing.assert_close(tokens.flatten(0, 1), expected[0, :-1], rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_larger_step_interpolates_the_stock_projection_to_fewer_tokens(stock, checkpoint, frames):
    features = load_encoder(NAME, str(checkpoint), pooling_step=3).encode(frames)
    model = stock.model
    states = model.vision_tower(normalised(frames), output_hidden_states=True).hidden_states
    projected = model.multi_modal_projector(states[-1]).mT.reshape(3, WIDTH, 7, 7)
    expected = torch.nn.functional.interpolate(projected, size=(3, 3), mode="bilinear")
    assert features.grid == (3, 3)
    torch.testing.assert_close(features.tokens, expected.flatten(2).mT, rtol=1e-5, atol=1e-6)


def test_published_sinks_belong_to_their_grid_only(tmp_path, encoder, frames):
    assert encoder.encode(frames).sinks == ()
    assert encoder._sinks_on((14, 14)) == (28, 27, 41, 169, 11, 12)
    save_llava(build_llava(), tmp_path)
    (tmp_path / "tango.json").write_text(json.dumps({"sinks": [3, 0]}))
    assert load_encoder(NAME, str(tmp_path)).encode(frames).sinks == (3, 0)


def test_code_inside_a_checkpoint_is_not_run_even_if_somebody_would_say_yes(
    tmp_path, stock, monkeypatch
):
    save_llava(stock, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    own = {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | own))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nOwn = None")
    monkeypatch.setattr("builtins.input", lambda _: "y")
    with pytest.raises(ValueError, match="its tokenizer cannot be read") as error:
        load_language_model(NAME, str(tmp_path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"chatt": {}}, "unexpected keyword argument 'chatt'; its keys are chat"),
        ({"chat": {"opening": ""}}, "missing 2 required positional arguments: 'after_clip'"),
    ],
)
def test_mistakes_in_tango_json_are_reported(tmp_path, stock, content, words):
    path = save_llava(stock, tmp_path)
    (path / "tango.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words):
        describe_model(NAME, str(path))


def test_pixels_are_normalised_as_the_stock_processor_does(encoder):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (1, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    processor = LlavaOnevisionImageProcessorPil(
        do_resize=False,
        do_pad=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
    )
    stock = processor(Image.fromarray(pixels[0]), return_tensors="np")["pixel_values"][0, 0]
    own = encoder._normalise(torch.tensor(pixels))[0]
    np.testing.assert_allclose(own.numpy(), stock, atol=1e-6)


@pytest.fixture(scope="module")
def language_model(checkpoint):
    return load_language_model(NAME, str(checkpoint))


def test_original_positions_are_those_of_the_full_sequence(language_model, video):
    full = CompressedVideo(torch.zeros(48, WIDTH), torch.arange(48), video.grid, video.timestamps)
    everything = language_model.layout.lay_out(full, Prompt("", "w1"), "original")
    assert everything.positions.tolist() == list(range(len(everything)))
    kept = language_model.layout.lay_out(video, Prompt("", "w1"), "original")
    places = [*range(2), *(video.indices + 2).tolist(), *range(50, len(everything))]
    assert kept.positions.tolist() == places


HEAD_SIGNALS = frozenset({"saliency", "frame_embeddings"})


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN_DIR / "unit_saliency_siglip.npz") as arrays:
        return {name: torch.tensor(arrays[name]) for name in arrays.files}


@pytest.fixture(scope="module")
def golden_head(golden):
    config = SiglipVisionConfig(
        hidden_size=48, intermediate_size=96, num_attention_heads=int(golden["heads"])
    )
    head = PoolingHead(config)
    names = {
        "post_layernorm.weight": "ln_w",
        "post_layernorm.bias": "ln_b",
        "head.probe": "probe",
        "head.attention.in_proj_weight": "in_proj_weight",
        "head.attention.in_proj_bias": "in_proj_bias",
        "head.attention.out_proj.weight": "out_w",
        "head.attention.out_proj.bias": "out_b",
        "head.layernorm.weight": "norm_w",
        "head.layernorm.bias": "norm_b",
        "head.mlp.fc1.weight": "fc1_w",
        "head.mlp.fc1.bias": "fc1_b",
        "head.mlp.fc2.weight": "fc2_w",
        "head.mlp.fc2.bias": "fc2_b",
    }
    head.load_state_dict({name: golden[source] for name, source in names.items()})
    return head.requires_grad_(False)


def test_saliency_agrees_with_the_official_pooling_head(golden, golden_head):
    saliency = golden_head.saliency(golden["hidden"])
    torch.testing.assert_close(saliency, golden["p_attn"][:, 0], rtol=1e-5, atol=1e-8)
    pooled = pool_grid(saliency, (27, 27), "bilinear")
    torch.testing.assert_close(pooled, golden["bilinear/p_attn_pooled"], rtol=1e-5, atol=1e-8)


def test_frame_embedding_agrees_with_the_official_pooling_head(golden, golden_head):
    embedding = golden_head.embed(golden["hidden"])
    torch.testing.assert_close(embedding, golden["global_feature"], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def towers():
    """The same weights behind fused and behind eager attention."""
    config = build_llava(head=True).config.vision_config
    built = {}
    for kind in ("sdpa", "eager"):
        torch.manual_seed(3)
        built[kind] = SiglipVisionModel._from_config(config, attn_implementation=kind).eval()
    return built


@pytest.fixture(scope="module")
def pixels():
    return torch.randn(6, 3, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("number", [1, 2])
@torch.no_grad()
def test_received_attention_is_that_of_eager_attention(towers, pixels, number):
    eager = towers["eager"](pixels, output_attentions=True).attentions[number - 1]
    received = run_tower(towers["sdpa"], pixels, number).received()
    torch.testing.assert_close(received, eager.mean(dim=(1, 2)), rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_frame_embedding_is_the_towers_own_pooler_output(headed, frames):
    encoder = load_encoder(NAME, str(headed))
    features = encoder.encode(frames, frozenset({"frame_embeddings"}))
    pixels = torch.tensor(frames.pixels).permute(0, 3, 1, 2) / 127.5 - 1
    pooled = encoder.model.vision_tower(pixels).pooler_output
    torch.testing.assert_close(features.frame_embeddings, pooled, rtol=1e-5, atol=1e-5)


def _save_siglip(directory: Path, head_only: bool = False) -> Path:
    """Save the tower of the headed checkpoint as a SigLIP checkpoint of its own."""
    headed = build_llava(head=True)
    vision = headed.config.vision_config.to_dict()
    sizes = ("hidden_size", "num_attention_heads", "intermediate_size")
    text = {name: vision[name] for name in sizes} | {"num_hidden_layers": 1, "vocab_size": 8}
    text["projection_size"] = vision["hidden_size"]
    model = SiglipModel(SiglipConfig(vision_config=vision, text_config=text))
    model.vision_model.load_state_dict(headed.model.vision_tower.state_dict())
    model.save_pretrained(directory)
    if head_only:
        path = directory / "model.safetensors"
        tensors = load_file(path).items()
        save_file({n: one for n, one in tensors if "head" in n or "post_layernorm" in n}, path)
    return directory


@pytest.mark.parametrize("head_only", [False, True])
def test_a_second_checkpoint_replaces_the_missing_head(headed, frames, tmp_path, head_only):
    siglip = _save_siglip(tmp_path / "siglip", head_only)
    headless = build_llava(head=False)
    complete = build_llava(head=True).state_dict()
    headless.load_state_dict({name: complete[name] for name in headless.state_dict()})
    save_llava(headless, tmp_path / "llava")
    own = load_encoder(NAME, str(headed)).encode(frames, HEAD_SIGNALS)
    borrowed_encoder = load_encoder(NAME, str(tmp_path / "llava"), saliency_from=str(siglip))
    assert borrowed_encoder.spec.provides >= HEAD_SIGNALS
    borrowed = borrowed_encoder.encode(frames, HEAD_SIGNALS)
    torch.testing.assert_close(borrowed.saliency, own.saliency, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(borrowed.frame_embeddings, own.frame_embeddings)


def test_another_head_is_another_model_for_the_cache(checkpoint, tmp_path):
    siglip = _save_siglip(tmp_path)
    before = describe_model(NAME, str(checkpoint), saliency_from=str(siglip)).identity()
    tensors = load_file(siglip / "model.safetensors")
    name = next(name for name in tensors if name.endswith("head.probe"))
    save_file(tensors | {name: tensors[name] + 1}, siglip / "model.safetensors")
    assert describe_model(NAME, str(checkpoint), saliency_from=str(siglip)).identity() != before


def test_a_second_checkpoint_of_another_width_is_refused(checkpoint, tmp_path):
    config = SiglipVisionConfig(
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
    )
    SiglipVisionModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has width 24, but the tower has 16"):
        load_encoder(NAME, str(checkpoint), saliency_from=str(tmp_path))


@torch.no_grad()
def test_keys_are_averaged_over_heads_not_over_tokens(towers, pixels):
    tower = towers["sdpa"]
    output = run_tower(tower, pixels, len(tower.encoder.layers))
    attention = tower.encoder.layers[-1].self_attn
    before = tower(pixels, output_hidden_states=True).hidden_states[-2]
    keys = attention.k_proj(tower.encoder.layers[-1].layer_norm1(before))
    first, second = keys[..., :8], keys[..., 8:]
    torch.testing.assert_close(output.mean_keys(), (first + second) / 2)


@pytest.mark.parametrize("layer", [0, 1, 2])
@torch.no_grad()
def test_a_trace_shows_every_layer_of_the_tower(headed, frames, layer):
    encoder = load_encoder(NAME, str(headed))
    trace = encoder.trace(frames, [layer])
    pixels = torch.tensor(frames.pixels).permute(0, 3, 1, 2) / 127.5 - 1
    states = encoder.model.vision_tower(pixels, output_hidden_states=True).hidden_states
    assert trace.num_layers == encoder.num_layers
    assert layer > encoder.num_layers or set(trace.hidden) == {layer}
    torch.testing.assert_close(trace.hidden[layer], states[layer], rtol=1e-5, atol=1e-5)
    norms = torch.stack([state.norm(dim=-1) for state in states[: trace.num_layers + 1]], dim=1)
    torch.testing.assert_close(trace.norms, norms, rtol=1e-5, atol=1e-5)
    side = trace.grid[0]
    assert trace.attention.shape == (len(frames.pixels), side * side)
    attention = encoder.encode(frames, frozenset({"attention"})).attention
    pooled = pool_grid(trace.attention, trace.grid, "bilinear")
    torch.testing.assert_close(pooled, attention)


def test_signals_of_inner_blocks_are_those_of_the_stock_tower(frames, tmp_path):
    needs = {"shallow_attention", "deep_attention", "unpooled_tokens", "tower_tokens"}
    model = build_llava(num_blocks=9)
    encoder = load_encoder(NAME, str(save_llava(model, tmp_path)))
    features = encoder.encode(frames, frozenset(needs))
    config = model.config.vision_config
    tower = SiglipVisionModel._from_config(config, attn_implementation="eager").eval()
    tower.load_state_dict(model.model.vision_tower.state_dict())
    pixels = encoder._normalise(torch.from_numpy(frames.pixels))
    with torch.no_grad():
        stock = tower(pixels, output_attentions=True, output_hidden_states=True)
    for name, block in (("shallow_attention", 5), ("deep_attention", 7)):
        received = stock.attentions[block].mean(dim=(1, 2))
        torch.testing.assert_close(getattr(features, name), received, rtol=1e-4, atol=1e-7)
    states = stock.hidden_states[-1]
    torch.testing.assert_close(
        features.tower_tokens, pool_grid(states, (7, 7), "bilinear"), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        pool_grid(features.unpooled_tokens, (7, 7), "bilinear"), features.tokens
    )


def test_a_tower_of_few_blocks_has_no_inner_signals(encoder):
    assert not encoder.spec.provides & {"shallow_attention", "deep_attention"}
