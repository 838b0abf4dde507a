"""Requests answered together that fail, alone or for want of memory: the others are answered."""

from dataclasses import dataclass, replace

import pytest
import torch
from batched_requests import clip, run, say_tokens, texts

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import ClipPrompts
from tango_core.models.language.arena import KVArena
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.prefill import Prefill
from tango_core.types import Prompt


@pytest.fixture
def requests():
    generator = torch.Generator().manual_seed(2)
    return [
        ClipPrompts(
            clip(generator, 128, (8, 8, 8), 40 + index),
            [Prompt("", f"what color is the {word}") for word in ("cross", "circle")],
            max_new_tokens=5,
        )
        for index in range(9)
    ]


@dataclass(frozen=True)
class Refuses(LayerPruner):
    """Fails on every prompt."""

    def prune(self, context):
        raise ValueError("this pruner always fails")


def test_a_request_that_fails_does_so_alone(tiny, monkeypatch, requests):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    wrong = [*requests]
    wrong[4] = replace(requests[4], pruner=Refuses(0.5, 2))
    results = run(tiny, wrong, 4000)
    assert str(results[4]) == "this pruner always fails"
    assert texts([*results[:4], *results[5:]]) == [*expected[:4], *expected[5:]]


def test_tokens_that_are_no_numbers_touch_no_other_clip(tiny, monkeypatch, requests):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    bad = requests[3].video
    nan = replace(bad, tokens=torch.full_like(bad.tokens, torch.nan))
    results = run(tiny, [*requests[:3], replace(requests[3], video=nan), *requests[4:]], 4000)
    assert texts([*results[:3], *results[4:]]) == [*expected[:3], *expected[4:]]


def test_a_clip_of_another_model_is_refused_before_the_batch(tiny, monkeypatch, requests):
    session = tiny.session(4000)
    narrow = replace(requests[0].video, tokens=requests[0].video.tokens[:, :64])
    with pytest.raises(ValueError, match="video tokens have width 64"):
        session.add(replace(requests[0], video=narrow))
    assert not session.busy


def test_a_failure_while_decoding_is_tried_again_one_by_one(tiny, monkeypatch, requests):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    step, sizes = Decoding.step, []

    def fails_together(self):
        sizes.append(len(self._active))
        if len(self._active) > 2:
            raise RuntimeError("CUDA out of memory")
        step(self)

    monkeypatch.setattr(Decoding, "step", fails_together)
    assert texts(run(tiny, requests, 4000)) == expected
    assert max(sizes) > 2


def test_what_never_fits_is_an_error_of_each_request(tiny, monkeypatch, requests):
    def fails(self):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Prefill, "run", fails)
    results = run(tiny, requests[:3], 4000)
    assert all(isinstance(one, torch.OutOfMemoryError) for one in results)


def test_an_arena_that_does_not_fit_is_made_smaller(tiny, monkeypatch, requests):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    real, asked = KVArena.__init__, []

    def too_large(self, layers, slots, *rest):
        asked.append(slots)
        if slots > 3:
            raise MemoryError
        real(self, layers, slots, *rest)

    monkeypatch.setattr(KVArena, "__init__", too_large)
    assert texts(run(tiny, requests, 4000)) == expected
    assert max(asked) > 3


def test_a_guard_that_raises_ends_the_work(tiny, monkeypatch, requests):
    class LostError(Exception):
        pass

    def lost(error):
        raise LostError from error

    session = tiny.session(4000, lost)
    session.add(replace(requests[0], pruner=Refuses(0.5, 2)))
    with pytest.raises(LostError):
        session.step()


def test_the_budget_bounds_what_is_held_and_is_filled_again(tiny, monkeypatch, requests):
    """Replies of unequal length: what ends makes room while the others go on."""
    requests = [
        replace(one, prompts=one.prompts[:1], max_new_tokens=3 + 9 * (index % 3))
        for index, one in enumerate(requests * 3)
    ]
    budget, held, passes = 400, [], []
    session_pass = BatchSession._pass

    def watched(self, parts):
        passes.append(len(self._running))
        session_pass(self, parts)
        held.append(sum(one.tokens for one in self._running))

    monkeypatch.setattr(BatchSession, "_pass", watched)
    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset())
    run(tiny, requests, budget)
    assert max(held) <= budget
    assert any(passes)  # prefilled beside sequences that are being decoded
