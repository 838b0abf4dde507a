"""Logits and replies against stock Qwen2, with rows of newline tokens laid out by hand."""

import pytest
import torch
from llava_video_clip import PROMPTS
from without_cache import run_whole

from tango_core.types import ClipSource


def by_hand(original, model, video, prompt, positions):
    """(S, D) embeddings and (S,) positions of a question, row by row, from the definition."""
    width = video.grid[2]
    rows, places = [], []
    for row in range(video.grid[0] * video.grid[1]):
        members = [k for k, g in enumerate(video.indices.tolist()) if g // width == row]
        rows += [video.tokens[k] for k in members]
        places += [row * (width + 1) + int(video.indices[k]) % width for k in members]
        if members:
            rows.append(original.newline)
            places.append(row * (width + 1) + width)
    full_length = video.grid[0] * video.grid[1] * (width + 1)
    left, right = (
        model.layout.tokenizer(text, return_tensors="pt").input_ids[0]
        for text in (
            model.layout.chat.opening,
            "\n" + spoken(video) + prompt.after + model.layout.chat.closing,
        )
    )
    embed = original.llm.model.embed_tokens
    embeddings = torch.cat([embed(left), torch.stack(rows), embed(right)])
    if positions == "renumbered":
        return embeddings, torch.arange(len(embeddings))
    after = len(left) + full_length + torch.arange(len(right))
    middle = len(left) + torch.tensor(places)
    return embeddings, torch.cat([torch.arange(len(left)), middle, after])


def spoken(video):
    assert (video.source, video.grid[0]) == (ClipSource(2.25, 360), 4)
    return (
        "The video lasts for 2.25 seconds,and 360 frames are uniformly sampled from it."
        "These frames are located at 0.00s,0.50s,1.00s,1.50s."
        "Please answer the following questions related to this video.\n"
    )


@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("which", ["full", "pruned"])
@torch.no_grad()
def test_logits_are_those_of_stock_qwen2(original, model, full, pruned, which, positions):
    video = full if which == "full" else pruned
    embeddings, places = by_hand(original, model, video, PROMPTS[1], positions)
    expected = original.llm(inputs_embeds=embeddings[None], position_ids=places[None]).logits
    prompt = model.layout.lay_out(video, PROMPTS[1], positions)
    assert prompt.positions.tolist() == places.tolist()
    layer_loop = model.engine.layer_loop
    ours = torch.cat(
        [
            layer_loop.embed(prompt.spans[0].ids),
            prompt.spans[1].embeddings,
            layer_loop.embed(prompt.question),
        ]
    )
    assert torch.equal(ours, embeddings)
    hidden = run_whole(layer_loop, ours[None], prompt.positions[None])
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(layer_loop.logits(hidden), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("which", ["full", "pruned"])
def test_replies_are_those_of_stock_generate(
    original, model, full, pruned, which, positions, share_prefix
):
    video = full if which == "full" else pruned
    expected = []
    for prompt in PROMPTS:
        embeddings, places = by_hand(original, model, video, prompt, positions)
        generated = original.llm.generate(
            inputs_embeds=embeddings[None],
            attention_mask=torch.ones(1, len(embeddings), dtype=torch.long),
            position_ids=places[None],
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=256,
        )
        expected.append(" ".join(map(str, generated[0].tolist())))
    answers = model.answer(
        video, PROMPTS, positions=positions, max_new_tokens=8, share_prefix=share_prefix
    )
    assert [answer.text for answer in answers] == expected
    assert len(set(expected)) == len(PROMPTS)
