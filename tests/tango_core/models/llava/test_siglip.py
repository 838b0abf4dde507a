from pathlib import Path

import numpy as np
import pytest
import torch
from golden_files import GOLDEN_DIR
from llava_checkpoints import build_llava, save_llava
from safetensors.torch import load_file, save_file
from transformers import SiglipConfig, SiglipModel, SiglipVisionConfig, SiglipVisionModel

from tango_core.models import describe_model, load_encoder
from tango_core.models.llava.encoder import PoolingHead, run_tower
from tango_core.ops.saliency import pool_grid

NAME = "llava-onevision-7b"
GOLDEN = GOLDEN_DIR / "unit_saliency_siglip.npz"
HEAD_SIGNALS = frozenset({"saliency", "frame_embeddings"})


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as arrays:
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
