"""Checkpoints of published sizes: their config.json and tensor names, read by both loaders."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import transformers

from tango_core.compressors import build_method
from tango_core.models import load_encoder, load_language_model
from tango_core.types import Prompt, VideoFrames
from tests.gpu.random_weights import GEOMETRIES, write_random_checkpoint

# Those with a config.json that transformers reads.
STOCK = ("llava-onevision-0.5b", "qwen2.5-vl-7b", "qwen3-vl-2b", "qwen3.5-9b", "internvl3.5-8b-hf")
EVERY_PUSH = ("llava-video-7b", "qwen2.5-vl-3b", "internvl3.5-8b")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=[] if one in EVERY_PUSH else [pytest.mark.slow])
        for one in sorted(GEOMETRIES)
    ],
)
def test_both_halves_load_and_answer_a_prompt(tmp_path, name):
    write_random_checkpoint(name, tmp_path, shrink=16)
    if name in STOCK:
        stock = getattr(transformers, GEOMETRIES[name].stock)
        _, found = stock.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(found[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    model = GEOMETRIES[name].model
    encoder = load_encoder(model, str(tmp_path))
    language_model = load_language_model(model, str(tmp_path))
    side = encoder.spec.frames.multiple
    size = encoder.spec.frames.size or (4 * side, 6 * side)
    pixels = np.random.default_rng(0).integers(0, 256, (4, *size, 3), dtype=np.uint8)
    features = encoder.encode(VideoFrames(pixels, np.arange(4.0)), frozenset({"attention", "keys"}))
    assert torch.isfinite(features.tokens).all()
    assert float(features.tokens.std()) > 0.05
    method = build_method("tango", retention=0.1, score="attention")
    video = method.compressor.compress(features)
    (reply,) = language_model.answer(video, [Prompt("", "What happens?\nA. Nothing\nAnswer: ")])
    assert reply.status == "ok"
    assert reply.text
    assert "the weights are random" in encoder.spec.note


@pytest.mark.parametrize(
    ("name", "billions", "num_bytes"),
    [
        ("internvl3.5-2b-hf", 2.35, None),
        ("internvl3.5-4b-hf", 4.73, None),
        ("internvl3.5-8b", 8.53, None),  # 304.01 M of the tower in it, on the model's page
        ("internvl3.5-8b-hf", 8.53, None),
        ("llava-onevision-0.5b", 0.89, None),
        ("llava-onevision-7b", 8.03, None),
        ("llava-onevision-7b-lmms-lab", 8.03, None),
        ("llava-video-7b", 8.03, None),
        ("qwen2.5-vl-3b", 3.75, 7_509_245_952),
        ("qwen2.5-vl-7b", 8.29, 16_584_333_312),
        ("qwen3-vl-2b", 2.13, None),
        ("qwen3-vl-4b", 4.44, 8_875_631_616),
        ("qwen3-vl-8b", 8.77, 17_534_247_392),
        # 19,306,216,416 of the index, without the 15 tensors of `mtp`: a layer with full attention,
        # a projection of two states to one, and three norms; `A_log` and `norm` of the 24 linear
        # layers, 32 and 128 numbers, are float32 there.
        ("qwen3.5-9b", 9.41, 19_306_216_416 - 2 * 243_290_624 - 2 * 24 * (32 + 128)),
    ],
)
def test_the_geometry_is_as_large_as_published(tmp_path, name, billions, num_bytes):
    geometry = GEOMETRIES[name]
    (tmp_path / "config.json").write_text(json.dumps(dict(geometry.config)))
    count = sum(math.prod(shape) for _, shape, _ in geometry.tensors(tmp_path))
    assert round(count / 1e9, 2) == billions
    assert num_bytes in (None, 2 * count)
