"""Pruned clips: places, replies, shared prefixes and pruning inside, against plain loops."""

import math

import pytest
import torch
from qwen_by_hand import (
    ASKED,
    GRIDS,
    NAME,
    embeddings,
    greedy_without_cache,
    reference_positions,
    some,
    whole,
)
from qwen_checkpoints import ENDOFTEXT, NUM_LAYERS
from without_cache import answered

from tango_core.compressors import build_method
from tango_core.compressors.base import Pruned
from tango_core.models import load_language_model
from tango_core.types import Prompt

pytestmark = pytest.mark.usefixtures("no_gradients")


def said(model, ids):
    return model.layout.tokenizer.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("rule", ["hf450", "hf5"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
class TestPrunedClip:
    def test_kept_tokens_and_text_stay_where_they_were(self, qwen_checkpoint, rule, grid):
        model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
        video = some(grid, math.prod(grid) // 3)
        prompt = model.layout.lay_out(video, ASKED)
        left, right = len(prompt.spans[0].ids), len(prompt.question)
        full = reference_positions(left, grid, right, rule)
        total = left + math.prod(grid)
        keep = [*range(left), *(video.indices + left).tolist(), *range(total, total + right)]
        assert torch.equal(prompt.positions, full[:, keep])

    def test_replies_are_those_of_a_loop_without_cache_and_of_generate(
        self, qwen, qwen_checkpoint, rule, grid
    ):
        model = load_language_model(NAME, qwen_checkpoint, position_rule=rule)
        model.engine.eos_ids = frozenset()
        video = some(grid, math.prod(grid) // 3, seed=3)
        prompt = model.layout.lay_out(video, ASKED)
        embeds = embeddings(model, prompt)
        expected = greedy_without_cache(qwen, embeds, prompt.positions, 8)
        generated = qwen.generate(
            inputs_embeds=embeds,
            position_ids=prompt.positions[:, None],
            do_sample=False,
            max_new_tokens=8,
            eos_token_id=-1,
            pad_token_id=ENDOFTEXT,
        )
        (answer,) = model.answer(video, [ASKED], max_new_tokens=8)
        assert generated[0].tolist() == expected
        assert answer.text == said(model, expected)
        assert (answer.new_tokens, answer.prompt_tokens) == (8, embeds.shape[1])


def test_compressors_positions_make_no_difference(endless):
    video = some((3, 2, 5), 10)
    first, second = (
        endless.answer(video, [ASKED], positions=positions)[0].text
        for positions in ("renumbered", "original")
    )
    assert first == second


def test_prompts_share_the_clip_within_the_text_before_it(endless):
    video = some((3, 4, 5), 20)
    prompts = [
        Prompt(before, "What " + "is " * (index % 4) + f"{index}?")
        for before in ("", "Watch closely. ")
        for index in range(5)
    ]
    shared, alone = (
        endless.answer(video, prompts, share_prefix=share, max_new_tokens=6)
        for share in (True, False)
    )
    assert [answer.text for answer in shared] == [answer.text for answer in alone]
    assert len({answer.text for answer in shared}) > 1


@pytest.mark.parametrize("name", ["fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion"])
def test_replies_under_a_pruner_do_not_depend_on_the_cache(endless, name):
    layer = {"layer": 1} if name in ("fastv", "dart") else {}
    pruner = build_method(name, retention=0.6, num_layers=NUM_LAYERS, **layer).pruner
    prompt = endless.layout.lay_out(whole((6, 4, 4)), ASKED)
    cached, plain = (
        answered(endless.engine, [prompt], pruner=pruner, max_new_tokens=6, use_cache=use_cache)[0]
        for use_cache in (True, False)
    )
    assert cached.text == plain.text
    (unpruned,) = endless.engine.answer([prompt], max_new_tokens=6)
    assert cached.new_tokens == unpruned.new_tokens == 6


def test_pruning_inside_keeps_the_coordinates_of_what_stays(endless):
    """A pruner that keeps what a compressor kept, before layer 0, is that compressor."""
    full, video = whole((3, 4, 5)), some((3, 4, 5), 20)

    class Keep:
        renumbers = False

        def layers(self, num_layers):
            return (0,)

        def prune(self, context):
            keep = context.positions_with(video.indices)
            return Pruned(keep, context.hidden[keep])

    inside = endless.engine.answer(
        [endless.layout.lay_out(full, ASKED)], pruner=Keep(), max_new_tokens=6
    )
    before = endless.answer(video, [ASKED], max_new_tokens=6)
    assert inside[0].text == before[0].text
