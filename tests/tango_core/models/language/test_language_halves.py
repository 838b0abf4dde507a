"""The language halves of all families: half precision, and what fused attention is given.

CUDA's flash kernel takes no mask: it computes causal attention from the flag alone, and only if
there are as many keys as queries.
"""

import pytest
import torch
from torch.nn import functional
from without_cache import run_whole

from tango_core.compressors import build_method
from tango_core.models import load_language_model
from tango_core.types import CompressedVideo, Prompt

FAMILIES = ("llava-onevision-7b", "llava-video-7b", "qwen2.5-vl-7b", "internvl3.5-8b")
NUM_LAYERS = 4
METHODS = {
    "full": {},
    "fastv": {"retention": 0.7, "layer": 2},
    "tango": {"retention": 0.5, "inner": {"name": "fastv-merge", "layer": 2, "retention": 0.5}},
    "holitom": {"retention": 0.5, "inner": {"name": "holitom-merge", "layer": 2, "retention": 0.5}},
}


@pytest.fixture
def calls(monkeypatch):
    """Of every call of the fused kernel: queries, keys, and whether it is causal without a mask."""
    seen = []
    fused = functional.scaled_dot_product_attention

    def record(query, key, value, attn_mask=None, dropout=0.0, is_causal=False, **options):
        seen.append((query.shape[2], key.shape[2], attn_mask is None and is_causal))
        return fused(query, key, value, attn_mask, dropout, is_causal, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", record)
    return seen


def clip(width):
    generator = torch.Generator().manual_seed(3)
    return CompressedVideo(
        tokens=torch.randn(48, width, generator=generator),
        indices=torch.arange(48),
        grid=(3, 4, 4),
        timestamps=torch.arange(3, dtype=torch.float64),
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_of_a_prefill_is_causal_without_a_mask(small_paths, calls, family, name):
    model = load_language_model(family, small_paths[family])
    pruner = build_method(name, num_layers=NUM_LAYERS, **METHODS[name]).pruner
    video = clip(model.spec.llm.hidden_size)
    (answer,) = model.answer(video, [Prompt("", "w1 w2")], pruner=pruner, max_new_tokens=1)
    assert [queries == keys and causal for queries, keys, causal in calls] == [True] * NUM_LAYERS
    lengths = [queries for queries, _, _ in calls]
    assert lengths[:2] == [answer.prompt_tokens] * 2
    assert (lengths[2] < lengths[1]) == (pruner is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_questions_share_is_prefilled_without_a_mask(small_paths, calls, family):
    model = load_language_model(family, small_paths[family])
    questions = [Prompt("", "w1 w2"), Prompt("", "w1 w3 w4")]
    answers = model.answer(clip(model.spec.llm.hidden_size), questions, max_new_tokens=1)
    shared = [keys for queries, keys, causal in calls if queries == keys and causal]
    assert len(shared) == NUM_LAYERS
    assert shared[0] > 48
    # What goes on from there sees all of its own prompt, and no layer is gone through twice.
    whole = [keys for queries, keys, causal in calls if not causal]
    assert sorted(whole) == sorted([one.prompt_tokens for one in answers] * NUM_LAYERS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_close_to_single(small_paths, family, dtype):
    exact = load_language_model(family, small_paths[family])
    half = load_language_model(family, small_paths[family], dtype=dtype)
    assert {value.dtype for value in half.engine.model.parameters()} == {getattr(torch, dtype)}
    video = clip(exact.spec.llm.hidden_size)
    one, other = (logits(model, video) for model in (exact, half))
    tolerance = 0.01 if dtype == "float16" else 0.08
    assert float((other - one).norm() / one.norm()) < tolerance


@torch.no_grad()
def logits(model, video):
    """(S, vocabulary) float32 of a whole prompt."""
    laid = model.layout.lay_out(video, Prompt("", "w1 w2"))
    layer_loop = model.engine.layer_loop
    hidden = run_whole(
        layer_loop, model.engine.embed(laid.spans)[None], laid.positions[..., None, :]
    )
    return layer_loop.logits(hidden[0]).float()
