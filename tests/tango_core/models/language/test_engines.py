"""A layout and an engine put together: engines are exchangeable, prompts may hold several clips."""

import json
import shutil

import pytest
import torch
from llava_checkpoints import WIDTH
from torch.nn import functional
from without_cache import answered, run_whole

from tango_core.compressors import build_method
from tango_core.errors import InputError
from tango_core.models import load_language_model
from tango_core.models.base import OneByOne
from tango_core.models.language.engine import Engine, LayoutAndEngine
from tango_core.models.language.prompt import LaidOutPrompt, TextTokens, VisualTokens
from tango_core.types import Answer, CompressedVideo, Prompt

PROMPT = Prompt("", "w1 w2 w3")


def clip(width):
    tokens = torch.randn(12, width, generator=torch.Generator().manual_seed(1))
    return CompressedVideo(tokens, torch.arange(12), (1, 3, 4), torch.zeros(1).double())


class Counting(Engine):
    """Says how many tokens of each kind a prompt has."""

    def session(self, batch_tokens=None, guard=lambda error: None):
        return OneByOne(self._counts, guard)

    def _counts(self, request):
        if request.pruner is not None:
            raise ValueError("this engine cannot prune inside the language model")
        return [
            Answer(str(len(prompt.spans[1])), None, "ok", len(prompt), 1, 0.0, 0.0, 0.0)
            for prompt in request.prompts
        ]


def test_another_engine_answers_the_same_laid_out_prompts(checkpoint):
    native = load_language_model("llava-onevision-7b", str(checkpoint))
    other = LayoutAndEngine(native.spec, native.layout, Counting())
    expected, found = (model.answer(clip(WIDTH), [PROMPT])[0] for model in (native, other))
    assert found.prompt_tokens == expected.prompt_tokens
    assert found.text == str(expected.visual_tokens) == "13"
    pruner = build_method("fastv", retention=0.7, layer=2, num_layers=4).pruner
    with pytest.raises(ValueError, match="cannot prune inside"):
        other.answer(clip(WIDTH), [PROMPT], pruner=pruner)


def test_a_clip_may_be_several_visual_spans_with_text_between_them(checkpoint, stock):
    engine = load_language_model("llava-onevision-7b", str(checkpoint)).engine
    engine.eos_ids, engine.decode_text = frozenset(), lambda ids: " ".join(map(str, ids))
    video = clip(WIDTH)
    prompts = [
        LaidOutPrompt(
            spans=(
                TextTokens((2, 6)),
                VisualTokens(video.tokens[:5], video.indices[:5], video.grid),
                TextTokens((7, 8)),
                VisualTokens(video.tokens[5:], video.indices[5:], video.grid),
                TextTokens((9, last)),
            ),
            positions=torch.arange(18),
        )
        for last in (10, 11)
    ]
    expected = []
    for prompt in prompts:
        generated = stock.generate(
            inputs_embeds=engine.embed(prompt.spans)[None],
            attention_mask=torch.ones(1, 18, dtype=torch.long),
            max_new_tokens=6,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        expected.append(" ".join(map(str, generated[0].tolist())))
    for share_prefix in (True, False):
        answers = engine.answer(prompts, max_new_tokens=6, share_prefix=share_prefix)
        assert [answer.text for answer in answers] == expected
    assert (answers[0].prompt_tokens, answers[0].visual_tokens) == (18, 12)
    pruner = build_method("fastv", retention=0.7, layer=2, num_layers=4).pruner
    pruned = engine.answer(prompts, pruner=pruner, max_new_tokens=6)
    again = answered(engine, prompts, pruner=pruner, max_new_tokens=6, use_cache=False)
    assert [answer.text for answer in pruned] == [answer.text for answer in again]


@pytest.mark.parametrize(
    ("version", "says"), [(None, "is not installed"), ("0.31.2", "found vllm 0.31.2")]
)
def test_vllm_is_checked_when_the_model_is_loaded(tmp_path, monkeypatch, version, says):
    if version is not None:
        package = tmp_path / f"vllm-{version}.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=rf"engine vllm .*{says}; pip install 'vllm>=0.32,<0.34'"):
        load_language_model("tiny", device="cpu", engine="vllm")


SAMPLED = {
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 3,
    "top_p": 0.1,
    "repetition_penalty": 9.0,
    "no_repeat_ngram_size": 1,
    "num_beams": 4,
}


@pytest.mark.parametrize("family", ["llava-onevision-7b", "qwen2.5-vl-7b"])
def test_sampling_settings_of_a_checkpoint_change_no_reply(small_paths, family, tmp_path):
    plain = small_paths[family]
    sampled = shutil.copytree(plain, tmp_path / "sampled")
    settings = sampled / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | SAMPLED))
    texts = []
    for path in (plain, sampled):
        model = load_language_model(family, str(path))
        video = clip(model.spec.llm.hidden_size)
        model.engine.decode_text = lambda ids: " ".join(map(str, ids))
        texts.append([one.text for one in model.answer(video, [PROMPT, Prompt("", "w4 w5")])])
    assert texts[0] == texts[1]


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
