"""Replies about pruned clips: shared prefixes, batches and pruning inside, against plain loops."""

import math

import pytest
import torch
from internvl_by_hand import ASKED, GRIDS, greedy_without_cache
from internvl_checkpoints import ENDOFTEXT
from qwen_by_hand import embeddings, some

from tango_core.models.session import ClipPrompts
from tango_core.types import Prompt

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


def test_prompts_share_the_clip_and_all_text_between_its_frames(endless):
    video = some((3, 4, 4), 20)
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


def test_clips_together_give_the_replies_of_each_alone(endless):
    requests = [
        ClipPrompts(some(grid, 1 + seed, seed), [ASKED, Prompt("", f"{seed}?")], None, order, 6)
        for seed, (grid, order) in enumerate(
            (grid, order) for grid in GRIDS for order in ("renumbered", "original")
        )
    ]
    session, found = endless.session(4096), {}
    for request in requests:
        session.add(request)
    while session.busy:
        found |= {id(request): answers for request, answers in session.step()}
    for request in requests:
        expected = endless.answer(
            request.video, request.prompts, positions=request.positions, max_new_tokens=6
        )
        assert [one.text for one in found[id(request)]] == [one.text for one in expected]
