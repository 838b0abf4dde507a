"""Tokens and signals against the stock tower and plain computations; checkpoints of any layout."""

import itertools
import json

import pytest
import torch
from internvl_checkpoints import GRID, NAME, WIDTH, build_internvl, save_internvl
from PIL import Image
from qwen_by_hand import assert_close
from rounding import assert_equal_but_for_rounding
from safetensors.torch import load_file, save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tango_core.models import (
    describe_model,
    harness_settings,
    load_encoder,
    load_language_model,
)

SIGNALS = frozenset({"saliency", "attention", "keys", "frame_embeddings"})


def squares(maps):
    """(F, 64, C) patches -> (F, 16, 4, C): the patches of every token, by plain loops."""
    images = maps.view(len(maps), 8, 8, -1)
    tokens = [
        torch.stack([images[:, 2 * h + dy, 2 * w + dx] for dy in (0, 1) for dx in (0, 1)], dim=1)
        for h in range(4)
        for w in range(4)
    ]
    return torch.stack(tokens, dim=1)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "qk_norm"])
def eager(request, tmp_path_factory):
    """Our encoder, and the stock model with eager attention: its probabilities can be read."""
    stock = build_internvl(qk_norm=request.param)
    encoder = load_encoder(NAME, str(save_internvl(stock, tmp_path_factory.mktemp("eager"))))
    stock.model.vision_tower.set_attn_implementation("eager")
    return encoder, stock.model.vision_tower


def attentions(tower, pixels):
    """(F, heads, 65, 65) probabilities of the last block."""
    with torch.no_grad():
        return tower(pixels, output_attentions=True).attentions[-1]


@torch.no_grad()
def test_tokens_are_the_stock_features(internvl, encoder, frames, pixels):
    features = encoder.encode(frames)
    expected = internvl.model.get_image_features(pixels).pooler_output
    assert (features.grid, features.tokens.shape) == (GRID, (3, 16, WIDTH))
    assert_close(features.tokens, expected)


def test_saliency_is_what_cls_pays_to_the_patches_of_a_token(eager, frames, pixels):
    encoder, tower = eager
    paid = attentions(tower, pixels).mean(dim=1)[:, 0]
    expected = squares(paid[:, 1:, None]).sum(dim=(2, 3))
    saliency = encoder.encode(frames, SIGNALS).saliency
    torch.testing.assert_close(saliency, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(saliency.sum(dim=1), 1 - paid[:, 0], rtol=1e-4, atol=1e-6)


def test_attention_is_what_all_65_pay_to_the_patches_of_a_token(eager, frames, pixels):
    encoder, tower = eager
    received = attentions(tower, pixels).mean(dim=(1, 2))
    expected = squares(received[:, 1:, None]).sum(dim=(2, 3))
    torch.testing.assert_close(
        encoder.encode(frames, SIGNALS).attention, expected, rtol=1e-4, atol=1e-6
    )


@torch.no_grad()
def test_keys_are_means_over_heads_and_patches(eager, frames, pixels):
    encoder, tower = eager
    block, seen = tower.encoder.layer[-1], {}
    handle = block.register_forward_pre_hook(lambda module, args: seen.update(hidden=args[0]))
    tower(pixels)
    handle.remove()
    attention = block.attention
    keys = attention.k_norm(attention.k_proj(block.layernorm_before(seen["hidden"])))[:, 1:]
    expected = squares(keys.view(3, 64, 2, 16).mean(dim=2)).mean(dim=2)
    torch.testing.assert_close(encoder.encode(frames, SIGNALS).keys, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_frame_embeddings_are_cls_behind_the_last_block(internvl, encoder, frames, pixels):
    expected = internvl.model.vision_tower(pixels).last_hidden_state[:, 0]
    found = encoder.encode(frames, SIGNALS).frame_embeddings
    config = internvl.config.vision_config
    terms = config.num_hidden_layers * (4 * config.hidden_size + 2 * config.intermediate_size)
    assert_equal_but_for_rounding(found, expected, terms)


IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def test_pixels_are_normalised_as_the_stock_processor_does(encoder, frames):
    processor = CLIPImageProcessorPil(do_resize=False, do_center_crop=False, **IMAGENET)
    stock = processor(Image.fromarray(frames.pixels[0]), return_tensors="pt")["pixel_values"]
    own = encoder._normalise(torch.tensor(frames.pixels[:1]))
    # A scaling, a difference and a quotient.
    assert_equal_but_for_rounding(own, stock, 4)


@torch.no_grad()
def test_a_trace_shows_every_layer_without_cls(eager, frames, pixels):
    encoder, tower = eager
    stock = tower(pixels, output_hidden_states=True, output_attentions=True)
    trace = encoder.trace(frames, [0, 2])
    assert (trace.grid, trace.num_layers) == ((8, 8), 3)
    assert encoder.num_layers == 3
    assert set(trace.hidden) == {0, 2}
    for layer, state in trace.hidden.items():
        assert_close(state, stock.hidden_states[layer][:, 1:])
    norms = torch.stack([state[:, 1:].norm(dim=-1) for state in stock.hidden_states], dim=1)
    torch.testing.assert_close(trace.norms, norms, rtol=1e-4, atol=1e-4)
    received = stock.attentions[-1].mean(dim=(1, 2))[:, 1:]
    torch.testing.assert_close(trace.attention, received, rtol=1e-4, atol=1e-6)


def loaded(path):
    """Tensors of both halves under the names of the stock model."""
    halves = (load_encoder(NAME, path).model, load_language_model(NAME, path).engine.model)
    tensors = {name: value for half in halves for name, value in half.state_dict().items()}
    return {
        name if name.startswith("lm_head") else f"model.{name}": value
        for name, value in tensors.items()
    }


@pytest.mark.parametrize("layout", ["saved", "chat"])
def test_a_tower_with_normalised_queries_and_an_older_language_model(tmp_path, layout):
    stock = build_internvl(text="qwen2", qk_norm=True)
    path = str(save_internvl(stock, tmp_path, layout))
    found, expected = loaded(path), stock.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_fused_matrix_is_cut_without_a_copy(tmp_path, internvl):
    """On a CPU the parts are views of the file's pages, one behind the other."""
    path = str(save_internvl(internvl, tmp_path, "chat"))
    attention = load_encoder(NAME, path).model.vision_tower.encoder.layer[0].attention
    parts = [getattr(attention, f"{kind}_proj").weight for kind in "qkv"]
    places = [part.data_ptr() for part in parts]
    assert [after - before for before, after in itertools.pairwise(places)] == [
        part.nbytes for part in parts[:2]
    ]


def test_a_fused_matrix_of_another_size_names_itself(tmp_path, internvl):
    path = save_internvl(internvl, tmp_path, "chat")
    tensors = load_file(path / "model.safetensors")
    name = "vision_model.encoder.layers.0.attn.qkv.weight"
    save_file({**tensors, name: tensors[name][:-1].clone()}, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"attn\.qkv\.weight has shape \(95, 32\).*\(96, 32\)"):
        load_encoder(NAME, str(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llava"}, "holds a 'llava' model, not 'internvl' .* or 'internvl_chat"),
        ({"select_layer": -4}, "select_layer of config.json is -4, but only -1 is"),
        ({"ps_version": "v1"}, "ps_version of config.json is 'v1', but only 'v2'"),
        ({"downsample_ratio": 0.25}, "downsample_ratio of config.json is 0.25, but only 0.5"),
        ({"vision_feature_layer": -2}, "vision_feature_layer of config.json is -2, but"),
        ({"llm_config": {"model_type": "gpt2"}}, "is 'gpt2', but only 'qwen3' or 'qwen2'"),
    ],
)
def test_variants_that_are_not_computed(tmp_path, internvl, changes, words):
    layout = "saved" if "vision_feature_layer" in changes else "chat"
    path = save_internvl(internvl, tmp_path, layout)
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(ValueError, match=words) as refused:
        describe_model(NAME, str(path))
    assert "\n" not in str(refused.value)


def test_frames_and_labels_of_lmms_eval():
    expected = {"sampling": "middles", "frame_label": "lmms_eval"}
    assert harness_settings(NAME, "lmms_eval") == expected
