"""Tokens and signals of the vision half against the stock tower and plain computations."""

import pytest
import torch
from internvl_checkpoints import GRID, NAME, WIDTH, build_internvl, save_internvl
from PIL import Image
from qwen_by_hand import assert_close
from rounding import assert_equal_but_for_rounding
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tango_core.models import load_encoder

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


@torch.no_grad()
def test_a_token_is_the_square_of_patches_at_its_place(internvl, encoder, frames, pixels):
    patches = internvl.model.vision_tower(pixels).last_hidden_state[:, 1:]
    expected = internvl.model.multi_modal_projector(squares(patches).flatten(2))
    assert_close(encoder.encode(frames).tokens, expected)


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
