"""Both halves against the stock model: whole clips and pruned ones, logits and positions."""

import math

import pytest
import torch
from qwen3_checkpoints import (
    ASKED,
    EXTRA,
    NAME,
    only,
    some,
    whole,
)
from qwen_checkpoints import ENDOFTEXT, VIDEO_PAD
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from without_cache import run_whole

from tango_core.models import load_language_model
from tango_core.models.language.packed_pass import additions
from tango_core.models.language.prompt import TextTokens

pytestmark = pytest.mark.usefixtures("no_gradients")
GRIDS = [(3, 2, 3), (1, 4, 4), (5, 1, 2)]


def ids_of(prompt):
    """(1, S) token ids, with the clip's placeholder where a visual token stands."""
    ids = []
    for span in prompt.spans:
        ids += span.ids if isinstance(span, TextTokens) else [VIDEO_PAD] * len(span)
    return torch.tensor([ids])


def logits_of(model, prompt):
    """(1, S, vocabulary) by our loop."""
    loop = model.engine.layer_loop
    hidden = run_whole(
        loop,
        model.engine.embed(prompt.spans)[None],
        prompt.positions[:, None],
        added=additions(prompt.spans, loop.device),
    )
    return loop.logits(hidden)


def deep_of(video):
    """What the stock model calls the clip's features."""
    return BaseModelOutputWithDeepstackFeatures(
        pooler_output=(video.tokens,),
        deepstack_features=[(video.companions[:, one],) for one in range(EXTRA)],
    )


def stock_logits(qwen3, prompt, video):
    """By the whole stock model, given the kept tokens and the positions."""
    ids = ids_of(prompt)
    return qwen3(
        input_ids=ids,
        position_ids=prompt.positions[:, None],
        mm_encoder_outputs={"video": deep_of(video)},
        mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
    ).logits


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions_are_those_of_transformers(qwen3, qwen3_checkpoint, grid, outer):
    model = load_language_model(NAME, qwen3_checkpoint, outer_marks=outer)
    prompt = model.layout.lay_out(whole(grid), ASKED)
    ids = ids_of(prompt)
    stock, _ = qwen3.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
        video_grid_thw=torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]]),
    )
    assert torch.equal(prompt.positions, stock[:, 0])


@pytest.mark.parametrize("empty", ["keep", "drop"])
@pytest.mark.parametrize("kept", [[0, 1, 5, 7, 17], [6, 9], [13]], ids=str)
def test_pruned_clips_give_the_stock_logits_exactly(qwen3, qwen3_checkpoint, kept, empty):
    model = load_language_model(NAME, qwen3_checkpoint, empty_blocks=empty)
    video = only(whole((3, 2, 3)), kept)
    prompt = model.layout.lay_out(video, ASKED)
    assert torch.equal(logits_of(model, prompt), stock_logits(qwen3, prompt, video))


def test_a_pruned_clip_has_the_positions_of_the_whole_one(endless):
    full = endless.layout.lay_out(whole((3, 2, 3)), ASKED)
    kept = [0, 5, 13, 16]
    pruned = endless.layout.lay_out(only(whole((3, 2, 3)), kept), ASKED)
    dropped = set(range(18)) - set(kept)
    visual = (ids_of(full)[0] == VIDEO_PAD).nonzero()[:, 0].tolist()
    columns = [at for at in range(len(full)) if at not in {visual[cell] for cell in dropped}]
    assert torch.equal(pruned.positions, full.positions[:, columns])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_replies_are_those_of_generate(qwen3, endless, grid):
    video = some(grid, math.prod(grid) // 2 + 1, seed=3)
    prompt = endless.layout.lay_out(video, ASKED)
    ids = ids_of(prompt)
    generated = qwen3.generate(
        input_ids=ids,
        position_ids=prompt.positions[:, None],
        mm_encoder_outputs={"video": deep_of(video)},
        mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
        do_sample=False,
        max_new_tokens=8,
        eos_token_id=-1,
        pad_token_id=ENDOFTEXT,
    )[0, ids.shape[1] :].tolist()
    (answer,) = endless.answer(video, [ASKED], max_new_tokens=8)
    said = endless.layout.tokenizer.decode(generated, skip_special_tokens=True).strip()
    assert answer.text == said
    assert (answer.new_tokens, answer.prompt_tokens) == (8, ids.shape[1])
    assert answer.visual_tokens == video.num_kept


def test_in_half_precision_the_loop_is_the_stock_model(qwen3_checkpoint):
    # Not `.bfloat16()`, which would cut the frequencies of the rotary embedding as well.
    stock = Qwen3VLForConditionalGeneration.from_pretrained(
        qwen3_checkpoint, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = load_language_model(NAME, qwen3_checkpoint, dtype="bfloat16")
    video = some((3, 2, 3), 7)
    half = type(video)(
        video.tokens.bfloat16(),
        video.indices,
        video.grid,
        video.timestamps,
        companions=video.companions.bfloat16(),
    )
    prompt = model.layout.lay_out(half, ASKED)
    assert torch.equal(logits_of(model, prompt), stock_logits(stock, prompt, half))


def test_tokens_without_their_companions_are_refused(endless):
    video = whole((2, 2, 2))
    bare = type(video)(video.tokens, video.indices, video.grid, video.timestamps)
    with pytest.raises(ValueError, match="come with 0 companions each, but model qwen3-vl-8b adds"):
        endless.answer(bare, [ASKED])
