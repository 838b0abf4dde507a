"""Replies about pruned clips: shared prefixes, batches and pruning inside, against plain loops."""

import math

import pytest
import torch
from internvl_by_hand import ASKED, GRIDS, greedy_without_cache
from internvl_checkpoints import ENDOFTEXT, NAME, NUM_LAYERS, build_internvl
from qwen_by_hand import assert_close, embeddings, some, whole

from tango_core.compressors import build_method
from tango_core.models import load_language_model
from tango_core.models.language.packed_pass import visual_span
from tango_core.models.language.prompt import VisualTokens

pytestmark = pytest.mark.usefixtures("no_gradients")


def said(model, ids):
    return model.layout.tokenizer.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_replies_are_those_of_a_loop_without_cache_and_of_generate(
    internvl, endless, grid, positions
):
    video = some(grid, math.prod(grid) // 3, seed=3)
    prompt = endless.layout.lay_out(video, ASKED, positions)
    embeds = embeddings(endless, prompt)
    expected = greedy_without_cache(internvl, embeds, prompt.positions[None], 8)
    generated = internvl.generate(
        inputs_embeds=embeds,
        position_ids=prompt.positions[None],
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=8,
        eos_token_id=-1,
        pad_token_id=ENDOFTEXT,
    )
    (answer,) = endless.answer(video, [ASKED], positions=positions, max_new_tokens=8)
    assert generated[0].tolist() == expected
    assert answer.text == said(endless, expected)
    assert (answer.new_tokens, answer.prompt_tokens) == (8, embeds.shape[1])
    assert answer.visual_tokens == video.num_kept


@torch.no_grad()
def test_fastv_keeps_what_the_last_token_of_the_stock_model_looks_at(internvl_checkpoint):
    """Its ranking is the eager attention of the stock layer; the rest is the stock layers."""
    stock = build_internvl()
    stock.model.language_model.set_attn_implementation("eager")
    model = load_language_model(NAME, internvl_checkpoint)
    video = whole((3, 4, 4))
    prompt = model.layout.lay_out(video, ASKED)
    embeds = embeddings(model, prompt)
    visual = torch.cat(
        [torch.full((len(s),), isinstance(s, VisualTokens)) for s in prompt.spans]
    ).nonzero()[:, 0]
    seen = stock.model.language_model(inputs_embeds=embeds, output_attentions=True).attentions
    scores = seen[1][0, :, -1, visual].mean(dim=0)  # layer 2 prunes by what layer 1 attends to

    pruner = build_method("fastv", retention=0.75, layer=2, num_layers=NUM_LAYERS).pruner
    kept = scores.topk(len(visual) // 2).indices.sort().values
    stays = torch.ones(len(prompt), dtype=torch.bool)
    stays[visual] = False
    stays[visual[kept]] = True

    text = stock.model.language_model
    text.set_attn_implementation("sdpa")
    hidden, places = embeds, torch.arange(len(prompt))
    for index, layer in enumerate(text.layers):
        if index == 2:
            hidden, places = hidden[:, stays], places[stays]
        hidden = layer(hidden, position_embeddings=text.rotary_emb(hidden, places[None]))
    expected = stock.lm_head(text.norm(hidden))

    loop = model.engine.layer_loop
    span = visual_span(prompt.spans, loop.device)
    found = loop.logits(loop.run(embeds, prompt.positions[None], pruner=pruner, visual=span))
    assert_close(found, expected)
