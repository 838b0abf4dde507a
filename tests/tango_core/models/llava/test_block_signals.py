"""Signals before pooling and of inner blocks, against stock layers with eager attention."""

import numpy as np
import pytest
import torch
from llava_checkpoints import build_llava, save_llava
from transformers import SiglipVisionModel

from tango_core.models import load_encoder
from tango_core.ops.saliency import pool_grid
from tango_core.types import VideoFrames

NAME = "llava-onevision-7b"
NEEDS = frozenset({"shallow_attention", "deep_attention", "unpooled_tokens", "tower_tokens"})


@pytest.fixture(scope="module")
def model():
    return build_llava(num_blocks=9)


@pytest.fixture(scope="module")
def encoder(model, tmp_path_factory):
    return load_encoder(NAME, str(save_llava(model, tmp_path_factory.mktemp("llava"))))


@pytest.fixture(scope="module")
def frames():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.arange(5.0))


def test_signals_are_those_of_the_stock_tower(model, encoder, frames):
    features = encoder.encode(frames, NEEDS)
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


def test_a_tower_of_few_blocks_has_no_inner_signals(tmp_path):
    spec = load_encoder(NAME, str(save_llava(build_llava(), tmp_path))).spec
    assert not spec.provides & {"shallow_attention", "deep_attention"}
