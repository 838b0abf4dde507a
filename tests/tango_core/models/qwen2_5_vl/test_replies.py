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
)
from qwen_checkpoints import ENDOFTEXT

from tango_core.models import load_language_model

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
