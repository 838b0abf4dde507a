"""DeepStack in the loop over layers, against the stock text model of Qwen3-VL."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
from without_cache import answered

from tango_core.compressors import build_method
from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models.language.engine import NativeEngine
from tango_core.models.language.packed_pass import visual_span, visual_spans
from tango_core.models.language.prompt import (
    LaidOutPrompt,
    LaidOutRequest,
    TextTokens,
    VisualTokens,
)
from tango_core.models.language.pruning import Additions

LAYERS, WIDTH, EXTRA, NUM_NEW = 6, 32, 3, 6
GRID = (3, 2, 3)
pytestmark = pytest.mark.usefixtures("no_gradients")


class Half(nn.Module):
    """Layers and output projection, with norms and additions that matter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = Qwen3VLTextConfig(
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=60,
            initializer_range=0.4,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 100.0,
                "mrope_section": [4, 2, 2],
            },
        )
        self.language_model = Qwen3VLTextModel._from_config(config, attn_implementation="sdpa")
        self.lm_head = nn.Linear(WIDTH, 60, bias=False)
        for value in self.parameters():
            if value.ndim == 1:
                value.data.uniform_(0.5, 2)
        self.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def half():
    return Half()


@pytest.fixture(scope="module")
def engine(half):
    return NativeEngine(half, lambda ids: " ".join(map(str, ids)), frozenset())


def prompt_of(question, counts=(6, 2, 4), seed=0):
    """Three blocks with text before each; so many tokens of every block."""
    generator = torch.Generator().manual_seed(seed)
    spans, positions, at = [TextTokens((5, 6))], [torch.arange(2).expand(3, -1)], 2
    for block, count in enumerate(counts):
        spans.append(TextTokens((20 + block, 30), of_clip=True))
        positions.append(torch.arange(at, at + 2).expand(3, -1))
        cells = torch.randperm(6, generator=generator)[:count].sort().values
        spans.append(
            VisualTokens(
                torch.randn(count, WIDTH, generator=generator),
                cells + 6 * block,
                GRID,
                torch.randn(count, EXTRA, WIDTH, generator=generator) * 2,
            )
        )
        places = torch.stack([torch.zeros_like(cells), cells // 3, cells % 3])
        positions.append(places + at + 2)
        at += 5
    spans.append(TextTokens(question))
    positions.append(torch.arange(at, at + len(question)).expand(3, -1))
    return LaidOutPrompt(tuple(spans), torch.cat(positions, dim=-1))


QUESTIONS = [(40, 41, 42), (40, 41, 50, 51), (44,)]


def deep_rows(prompt):
    """(S,) where visual tokens are, and their (V, E, D) additions."""
    is_visual = torch.zeros(len(prompt), dtype=torch.bool)
    values = []
    for start, span in visual_spans(prompt.spans):
        is_visual[start : start + len(span)] = True
        values.append(span.companions)
    return is_visual, torch.cat(values)


def stock_reply(half, engine, prompt, num_new=NUM_NEW):
    """Every token from the whole sequence, through the stock text model."""
    is_visual, values = deep_rows(prompt)
    hidden, positions, ids = engine.embed(prompt.spans), prompt.positions, []
    while len(ids) < num_new:
        output = half.language_model(
            inputs_embeds=hidden[None],
            position_ids=positions[:, None],
            visual_pos_masks=is_visual[None],
            deepstack_visual_embeds=list(values.unbind(dim=1)),
            use_cache=False,
        ).last_hidden_state
        ids.append(int(half.lm_head(output[0, -1]).argmax()))
        hidden = torch.cat([hidden, half.language_model.embed_tokens(torch.tensor(ids[-1:]))])
        positions = torch.cat([positions, positions[:, -1:] + 1], dim=-1)
        is_visual = torch.cat([is_visual, torch.tensor([False])])
    return " ".join(map(str, ids))


def test_the_loop_gives_the_stock_states_exactly(half, engine):
    prompt = prompt_of(QUESTIONS[0])
    is_visual, values = deep_rows(prompt)
    hidden = engine.embed(prompt.spans)[None]
    expected = half.language_model(
        inputs_embeds=hidden,
        position_ids=prompt.positions[:, None],
        visual_pos_masks=is_visual[None],
        deepstack_visual_embeds=list(values.unbind(dim=1)),
    ).last_hidden_state
    loop = engine.layer_loop
    rows = is_visual.nonzero()[:, 0]
    found = loop.run(hidden, prompt.positions[:, None], added=Additions(rows, values))
    assert torch.equal(loop.norm(found), expected)
    bare = loop.norm(loop.run(hidden, prompt.positions[:, None]))
    assert float((bare - expected).abs().max()) > 0.1


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("share", [True, False])
def test_replies_are_the_stock_models(half, engine, share, use_cache):
    prompts = [prompt_of(question) for question in QUESTIONS]
    expected = [stock_reply(half, engine, prompt) for prompt in prompts]
    answers = answered(
        engine, prompts, max_new_tokens=NUM_NEW, share_prefix=share, use_cache=use_cache
    )
    assert [answer.text for answer in answers] == expected
    assert len(set(expected)) > 1
    assert (answers[0].visual_tokens, answers[0].clip_text_tokens) == (12, 6)
    assert answers[0].prompt_tokens == 2 + 6 + 12 + 3


def test_clips_and_methods_in_one_batch_do_not_mix(half, engine):
    pruner = build_method("fastv", retention=0.6, layer=2, num_layers=LAYERS).pruner
    requests = [
        LaidOutRequest([prompt_of(q, counts, seed) for q in QUESTIONS], cut, NUM_NEW)
        for seed, (counts, cut) in enumerate(
            [((6, 6, 6), None), ((6, 6, 6), pruner), ((1, 0, 3), None), ((2, 6, 1), pruner)]
        )
    ]
    session, found = engine.session(10_000), {}
    for request in requests:
        session.add(request)
    while session.busy:
        found |= {id(request): answers for request, answers in session.step()}
    for request in requests:
        alone = engine.answer(request.prompts, pruner=request.pruner, max_new_tokens=NUM_NEW)
        texts = [answer.text for answer in alone]
        assert [answer.text for answer in found[id(request)]] == texts
        if request.pruner is None:
            assert texts == [stock_reply(half, engine, one) for one in request.prompts]


@dataclass(frozen=True)
class Fixed(LayerPruner):
    """Keeps given visual tokens, and moves what it keeps a little."""

    stays: tuple[int, ...] = (0, 3, 4, 7, 11)

    def prune(self, context: LayerContext) -> Pruned:
        kept = torch.tensor(self.stays, device=context.hidden.device)
        assert context.hidden[context.after :].shape[0] >= 1
        return context.select_merged(kept, context.hidden[context.visual[kept]] * 1.5)


def pruned_by_hand(half, prompt, hidden, layer, stays):
    """Stock layers one by one; the survivors take their own additions along."""
    is_visual, values = deep_rows(prompt)
    positions, model = prompt.positions, half.language_model
    for index, one in enumerate(model.layers):
        if index == layer:
            visual = is_visual.nonzero()[:, 0]
            gone = torch.ones(len(visual), dtype=torch.bool)
            gone[list(stays)] = False
            keep = torch.ones(len(is_visual), dtype=torch.bool)
            keep[visual[gone]] = False
            hidden = torch.where(is_visual[:, None], hidden * 1.5, hidden)[keep]
            positions, is_visual = positions[:, keep], is_visual[keep]
            values = values[~gone]
        rotary = model.rotary_emb(hidden[None], positions[:, None])
        mask = torch.ones(len(hidden), len(hidden), dtype=torch.bool).tril()[None, None]
        hidden = one(hidden[None], attention_mask=mask, position_embeddings=rotary)[0]
        if index < EXTRA:
            hidden = hidden.clone()
            hidden[is_visual] = hidden[is_visual] + values[:, index]
    return hidden[-1]


@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
def test_survivors_of_pruning_inside_keep_their_own_rows(half, engine, layer):
    pruner = Fixed(retention=0.5, layer=layer)
    prompt = prompt_of(QUESTIONS[0])
    hidden = engine.embed(prompt.spans)
    last = pruned_by_hand(half, prompt, hidden, layer, Fixed.stays)
    first = int(half.lm_head(half.language_model.norm(last)).argmax())
    for use_cache in (True, False):
        (answer,) = answered(engine, [prompt], pruner=pruner, max_new_tokens=1, use_cache=use_cache)
        assert answer.text == str(first)
    is_visual, values = deep_rows(prompt)
    rows = is_visual.nonzero()[:, 0]
    found = engine.layer_loop.run(
        hidden[None],
        prompt.positions[:, None],
        pruner=pruner,
        visual=engine_span(prompt),
        added=Additions(rows, values),
    )
    torch.testing.assert_close(found[0, -1], last, rtol=1e-4, atol=1e-4)


def engine_span(prompt):

    return visual_span(prompt.spans, torch.device("cpu"))


@pytest.mark.parametrize("name", ["fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion"])
def test_every_method_inside_replies_the_same_with_and_without_cache(engine, name):
    layer = {"layer": 2} if name in ("fastv", "dart") else {}
    pruner = build_method(name, retention=0.6, num_layers=LAYERS, **layer).pruner
    prompt = prompt_of(QUESTIONS[1], (6, 6, 6))
    cached, plain = (
        answered(engine, [prompt], pruner=pruner, max_new_tokens=NUM_NEW, use_cache=use_cache)[
            0
        ].text
        for use_cache in (True, False)
    )
    assert cached == plain
