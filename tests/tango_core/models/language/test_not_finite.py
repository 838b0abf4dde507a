"""A language model that computes NaN fails the prompts it computes it for, and no others."""

import pytest
import torch
from batched_requests import clip, run, texts

from tango_core.compressors import build_method
from tango_core.models.base import ClipPrompts
from tango_core.models.language.batching import most_likely
from tango_core.types import NotFiniteError, Prompt

PROMPTS = [Prompt("", "what color is the cross"), Prompt("", "what moves left")]


def some_clip(value: float | None = None):
    video = clip(torch.Generator().manual_seed(0), 128, (8, 8, 8), 26)
    if value is not None:
        video.tokens[3, 5] = value
    return video


def test_the_first_of_equal_logits_is_chosen_and_none_of_others():
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, nan, 1.0], [0.0, inf, 1.0], [-inf, -1.0, -inf]])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert most_likely(logits.to(dtype)).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("method", [None, "fastv"])
@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_error_names_the_half_and_the_dtype(tiny, method, share_prefix):
    pruner = method and build_method(method, retention=0.6, num_layers=4).pruner
    words = r"the language model computed NaN or infinite logits in float32; set model\.dtype"
    with pytest.raises(NotFiniteError, match=words):
        tiny.answer(some_clip(float("nan")), PROMPTS, pruner=pruner, share_prefix=share_prefix)


@pytest.mark.parametrize("batch_tokens", [1, None])
def test_clips_answered_together_with_it_keep_their_replies(tiny, batch_tokens):
    good = [ClipPrompts(some_clip(), PROMPTS), ClipPrompts(some_clip(), PROMPTS[:1])]
    bad = ClipPrompts(some_clip(float("nan")), PROMPTS)
    first, error, second = run(tiny, [good[0], bad, good[1]], batch_tokens)
    assert isinstance(error, NotFiniteError)
    for request, answers in zip(good, (first, second), strict=True):
        assert texts([answers]) == texts([tiny.answer(request.video, request.prompts)])
