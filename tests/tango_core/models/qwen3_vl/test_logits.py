"""Both halves of Qwen3-VL and Qwen3.5 against the stock models: whole clips and pruned ones."""

import math
from dataclasses import replace

import pytest
import torch
import transformers
from checkpoint_files import only
from checkpoint_files import some as some_of
from qwen3_checkpoints import whole
from qwen_checkpoints import ENDOFTEXT, VIDEO_PAD
from small_families import SMALL_FAMILIES
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from without_cache import run_whole

from tango_core.compressors import build_method
from tango_core.models import load_encoder, load_language_model
from tango_core.models.language.packed_pass import additions
from tango_core.models.language.prompt import TextTokens

pytestmark = pytest.mark.usefixtures("no_gradients")
GRIDS = [(3, 2, 3), (1, 4, 4), (5, 1, 2)]
STOCK = {
    "qwen3-vl-8b": "Qwen3VLForConditionalGeneration",
    "qwen3.5-9b": "Qwen3_5ForConditionalGeneration",
}


@pytest.fixture(scope="module", params=STOCK)
def family(request):
    return SMALL_FAMILIES[request.param]


@pytest.fixture(scope="module")
def stock(family, small_paths):
    """The whole stock model."""
    return loaded(family, small_paths, torch.float32)


@pytest.fixture(scope="module")
def endless(family, small_paths):
    """The language half; its replies only end at their bound."""
    model = load_language_model(family.name, small_paths[family.name])
    model.engine.eos_ids = frozenset()
    return model


def loaded(family, small_paths, dtype):
    # Not `.bfloat16()`, which would cut the frequencies of the rotary embedding as well.
    return getattr(transformers, STOCK[family.name]).from_pretrained(
        small_paths[family.name], dtype=dtype, attn_implementation="sdpa"
    )


def clip(family, grid, num_kept=None, seed=0):
    """A clip of random tokens, whole or some of it."""
    video = whole(grid, seed)
    video = video if family.extra else replace(video, companions=None)
    return video if num_kept is None else some_of(video, num_kept, seed)


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


def stock_inputs(prompt, video):
    """What the whole stock model takes: ids, the kept tokens, and explicit positions."""
    features = BaseModelOutputWithPooling(pooler_output=(video.tokens,))
    if video.companions is not None:
        deep = [(rows,) for rows in video.companions.unbind(1)]
        features = BaseModelOutputWithDeepstackFeatures(
            pooler_output=(video.tokens,), deepstack_features=deep
        )
    ids = ids_of(prompt)
    return {
        "input_ids": ids,
        "position_ids": prompt.positions[:, None],
        "mm_encoder_outputs": {"video": features},
        "mm_token_type_ids": (ids == VIDEO_PAD).int() * 2,
    }


def generated(stock, endless, inputs, num_new=8):
    """Text that `generate` of transformers gives."""
    ids = stock.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=num_new,
        eos_token_id=-1,
        pad_token_id=ENDOFTEXT,
    )[0, inputs["input_ids"].shape[1] :].tolist()
    return endless.layout.tokenizer.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_positions_are_those_of_transformers(family, stock, small_paths, grid, outer):
    model = load_language_model(family.name, small_paths[family.name], outer_marks=outer)
    prompt = model.layout.lay_out(clip(family, grid), family.asked)
    ids = ids_of(prompt)
    positions, _ = stock.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == VIDEO_PAD).int() * 2,
        video_grid_thw=torch.tensor([[grid[0], 2 * grid[1], 2 * grid[2]]]),
    )
    assert torch.equal(prompt.positions, positions[:, 0])


@pytest.mark.parametrize("empty", ["keep", "drop"])
@pytest.mark.parametrize("kept", [[0, 1, 5, 7, 17], [6, 9], [13]], ids=str)
def test_pruned_clips_give_the_stock_logits_exactly(family, stock, small_paths, kept, empty):
    model = load_language_model(family.name, small_paths[family.name], empty_blocks=empty)
    video = only(clip(family, (3, 2, 3)), kept)
    prompt = model.layout.lay_out(video, family.asked)
    expected = stock(**stock_inputs(prompt, video)).logits
    assert torch.equal(logits_of(model, prompt), expected)


@pytest.mark.parametrize("seed", range(10))
def test_replies_to_pixels_are_those_of_generate(family, stock, endless, small_paths, seed):
    """All tokens, both halves; `generate` has the pixels and makes the positions itself."""
    encoder = load_encoder(family.name, small_paths[family.name])
    frames = family.frames(1 + seed, seed)
    video = build_method("full").compressor.compress(encoder.encode(frames))
    prompt = endless.layout.lay_out(video, family.asked)
    (answer,) = endless.answer(video, [family.asked], max_new_tokens=8)
    inputs = family.stock_inputs(encoder, frames, ids_of(prompt))
    assert answer.text == generated(stock, endless, inputs)


def test_a_pruned_clip_has_the_positions_of_the_whole_one(family, endless):
    video = clip(family, (3, 2, 3))
    full = endless.layout.lay_out(video, family.asked)
    kept = [0, 5, 13, 16]
    pruned = endless.layout.lay_out(only(video, kept), family.asked)
    dropped = set(range(18)) - set(kept)
    visual = (ids_of(full)[0] == VIDEO_PAD).nonzero()[:, 0].tolist()
    columns = [at for at in range(len(full)) if at not in {visual[cell] for cell in dropped}]
    assert torch.equal(pruned.positions, full.positions[:, columns])


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_replies_are_those_of_generate(family, stock, endless, grid):
    video = clip(family, grid, math.prod(grid) // 2 + 1, seed=3)
    prompt = endless.layout.lay_out(video, family.asked)
    (answer,) = endless.answer(video, [family.asked], max_new_tokens=8)
    assert answer.text == generated(stock, endless, stock_inputs(prompt, video))
    assert (answer.new_tokens, answer.prompt_tokens) == (8, len(prompt))
    assert answer.visual_tokens == video.num_kept


def test_in_half_precision_the_loop_is_the_stock_model(family, small_paths):
    stock = loaded(family, small_paths, torch.bfloat16)
    model = load_language_model(family.name, small_paths[family.name], dtype="bfloat16")
    video = clip(family, (3, 2, 3), 7)
    deep = video.companions
    video = replace(
        video,
        tokens=video.tokens.bfloat16(),
        companions=None if deep is None else deep.bfloat16(),
    )
    prompt = model.layout.lay_out(video, family.asked)
    expected = stock(**stock_inputs(prompt, video)).logits
    assert torch.equal(logits_of(model, prompt), expected)
