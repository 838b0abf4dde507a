"""Logits of both halves together against the stock model, whole and pruned."""

import pytest
import torch
from internvl_by_hand import ASKED, GRIDS, full_ids, kept_places, stock_logits
from internvl_checkpoints import IMG_CONTEXT
from qwen_by_hand import assert_close, embeddings, some, whole
from transformers.modeling_outputs import BaseModelOutputWithPooling
from without_cache import run_whole

from tango_core.types import Prompt

pytestmark = pytest.mark.usefixtures("no_gradients")


def own_logits(model, prompt):
    loop = model.engine.layer_loop
    return loop.logits(run_whole(loop, embeddings(model, prompt), prompt.positions[None]))


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_pruned_clip_gives_the_logits_of_the_stock_layers(internvl, model, grid, positions):
    """The reference: embeddings and numbers of the whole turn, without the dropped tokens."""
    video = some(grid, max(1, grid[0] * grid[1] * grid[2] // 3))
    ids = full_ids(model, ASKED, grid)
    embeds = internvl.get_input_embeddings()(ids)
    embeds[ids == IMG_CONTEXT] = whole(grid).tokens
    places = kept_places(ids, video)
    numbers = places if positions == "original" else torch.arange(len(places))
    expected = stock_logits(internvl, embeds[:, places], numbers[None])
    prompt = model.layout.lay_out(video, ASKED, positions)
    assert_close(own_logits(model, prompt), expected)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_pruned_clip_is_what_the_stock_model_makes_of_fewer_context_tokens(internvl, model, grid):
    video = some(grid, max(1, grid[0] * grid[1] * grid[2] // 3))
    ids = full_ids(model, ASKED, grid)
    kept = ids[:, kept_places(ids, video)]
    image = BaseModelOutputWithPooling(pooler_output=video.tokens[None])
    expected = internvl(input_ids=kept, mm_encoder_outputs={"image": image}).logits
    assert_close(own_logits(model, model.layout.lay_out(video, ASKED)), expected)


def test_a_dropped_token_makes_a_difference(model):
    """What the comparisons above compare depends on the clip and on its positions."""
    grid = (3, 2, 4)
    prompts = [
        model.layout.lay_out(some(grid, 8, seed), Prompt("", "?"), positions)
        for seed, positions in ((0, "renumbered"), (0, "original"), (5, "renumbered"))
    ]
    first, *others = (own_logits(model, prompt)[0, -1] for prompt in prompts)
    assert all(float((first - other).abs().max()) > 0.1 for other in others)
