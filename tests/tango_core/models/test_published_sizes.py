"""Checkpoints of published sizes: their config.json and tensor names, read by both loaders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from tango_core.compressors import build_method
from tango_core.models import load_encoder, load_language_model
from tango_core.types import Prompt, VideoFrames
from tests.gpu.random_weights import GEOMETRIES, write_random_checkpoint

STOCK = {
    "llava-onevision-0.5b": "LlavaOnevisionForConditionalGeneration",
    "qwen2.5-vl-7b": "Qwen2_5_VLForConditionalGeneration",
    "qwen3-vl-2b": "Qwen3VLForConditionalGeneration",
    "qwen3.5-9b": "Qwen3_5ForConditionalGeneration",
    "internvl3.5-8b-hf": "InternVLForConditionalGeneration",
}
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
        stock = getattr(transformers, STOCK[name])
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
