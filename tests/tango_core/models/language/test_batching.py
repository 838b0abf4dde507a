"""Requests that are answered together get the replies of one by one."""

import random

import pytest
import torch
from batched_requests import clip, run, say_tokens, texts
from small_families import SMALL_FAMILIES

from tango_core import load_language_model
from tango_core.compressors import build_method
from tango_core.models.base import ClipPrompts
from tango_core.types import Prompt

PRUNERS = (None, None, "fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion")
# The others differ from these in nothing that batching sees.
QUICK = ("llava-video-7b", "qwen3-vl-8b", "qwen3.5-9b")
FAMILIES = {**SMALL_FAMILIES, "llava-video-7b": SMALL_FAMILIES["llava-onevision-7b"]}


def one_by_one(model, requests):
    return [model.answer(**{**vars(one), "share_prefix": False}) for one in requests]


@pytest.mark.parametrize("number", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_questions_to_the_embedded_model(tiny, monkeypatch, number):
    say_tokens(tiny, monkeypatch)
    generator, chosen = torch.Generator().manual_seed(0), random.Random(0)
    words = "what color is the cross circle square red blue moves left right before after"
    requests = [
        ClipPrompts(
            clip(generator, 128, (8, 8, 8), chosen.choice((26, 51, 51, 102, 512))),
            [
                Prompt("", " ".join(chosen.choices(words.split(), k=chosen.randint(4, 20))))
                for _ in range(chosen.choice((1, 1, 2, 3, 11)))
            ],
            pruner=None if index % 5 else build_method("fastv", retention=0.6, num_layers=4).pruner,
            max_new_tokens=chosen.choice((1, 4, 9)),
        )
        for index in range(number)
    ]
    assert sum(len(request.prompts) for request in requests) >= 3 * number
    alone = texts(one_by_one(tiny, requests))
    assert len({text for one in alone for text in one}) > number // 5
    for batch_tokens in (None, 5000):
        assert texts(run(tiny, requests, batch_tokens)) == alone


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in FAMILIES],
)
def test_clips_and_methods_are_answered_together(small_paths, monkeypatch, name):
    model, family = load_language_model(name, small_paths[name]), FAMILIES[name]
    say_tokens(model, monkeypatch)
    monkeypatch.setattr(model.engine, "eos_ids", frozenset(range(0, model.spec.llm.vocab_size, 9)))
    generator, chosen = torch.Generator().manual_seed(1), random.Random(1)
    requests = []
    for index in range(21):
        method, pruner = PRUNERS[index % len(PRUNERS)], None
        if method is not None and (inside := family.inside(method)) is not None:
            layers = family.num_layers
            pruner = build_method(method, retention=0.7, num_layers=layers, **inside).pruner
        requests.append(
            ClipPrompts(
                clip(
                    generator,
                    model.spec.llm.hidden_size,
                    (6, 4, 4),
                    chosen.choice((10, 33, 96)),
                    model.spec.companions,
                ),
                [
                    Prompt("", " ".join(f"w{chosen.randrange(60)}" for _ in range(3 + index % 5)))
                    for _ in range(chosen.choice((1, 2, 3)))
                ],
                pruner=pruner,
                positions=chosen.choice(("renumbered", "original")),
                max_new_tokens=chosen.choice((3, 12)),
            )
        )
    alone = texts(one_by_one(model, requests))
    lengths = {len(text.split()) for one in alone for text in one}
    assert len(lengths) > 2
    for batch_tokens in (300, 100_000):
        results = run(model, requests, batch_tokens)
        assert texts(results) == alone
        for request, answers in zip(requests, results, strict=True):
            for answer in answers:
                assert answer.prefill_ms > 0
                assert answer.ttft_ms > 0
                assert (answer.decode_ms > 0) == (answer.new_tokens > 1)
                assert answer.new_tokens <= request.max_new_tokens
