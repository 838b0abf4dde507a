"""Clips with more questions than one part holds, and answers that were broken off."""

from __future__ import annotations

import pytest
import torch

from tango_core.models.base import ClipPrompts
from tango_core.models.language.arena import KVArena
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.prefill import MAX_BATCH, Prefill
from tango_core.types import CompressedVideo, Prompt

WORDS = ("cross", "circle", "square", "triangle", "star", "ring")
PLACES = ("left", "right", "before", "after")


@pytest.fixture
def clip():
    generator = torch.Generator().manual_seed(3)
    kept = torch.randperm(512, generator=generator)[:60].sort().values
    tokens = torch.randn(60, 128, generator=generator)
    return CompressedVideo(tokens, kept, (8, 8, 8), torch.arange(8, dtype=torch.float64))


def questions(number):
    pairs = [(word, place) for place in PLACES for word in WORDS][:number]
    return [Prompt("", f"what color is the {word} {place}") for word, place in pairs]


@pytest.fixture
def passes(monkeypatch):
    """Of every pass, what its segments go on from."""
    run, found = Prefill.run, []

    def watched(self):
        found.append([segment.base for segment in self._segments])
        return run(self)

    monkeypatch.setattr(Prefill, "run", watched)
    return found


@pytest.mark.parametrize("number", [MAX_BATCH, MAX_BATCH + 1, 2 * MAX_BATCH + 2, 24])
@pytest.mark.parametrize("session", ["its own", "one for many tokens", "kept"])
def test_a_clip_is_prefilled_once_however_many_its_questions(
    tiny, clip, passes, monkeypatch, number, session
):
    left = []
    forget = BatchSession._forget_arena

    def watched(self):
        if self._arena is not None and not self._waiting:
            left.append((self._arena.num_free, self._arena.slots))
        if session != "kept" or self._waiting:  # a GPU keeps it for the next clips
            forget(self)

    monkeypatch.setattr(BatchSession, "_forget_arena", watched)
    asked = questions(number)
    alone = tiny.answer(clip, asked, max_new_tokens=6, share_prefix=False)
    passes.clear()
    left.clear()
    if session == "one for many tokens":
        batch = tiny.session(4000)
        batch.add(ClipPrompts(clip, asked, max_new_tokens=6))
        results = []
        while batch.busy:
            results += batch.step()
        ((_, answers),) = results
    else:
        answers = tiny.answer(clip, asked, max_new_tokens=6)
    assert [one.text for one in answers] == [one.text for one in alone]
    assert sum(base is None for one in passes for base in one) == 1
    assert left
    assert all(free == slots for free, slots in left), "all slots are free again"


def test_an_answer_that_was_broken_off_does_not_meet_the_next_one(tiny, clip, monkeypatch):
    asked = questions(6)
    expected = [tiny.answer(clip, [one], max_new_tokens=4)[0].text for one in asked]
    assert len(set(expected)) > 1
    step, left = Decoding.step, [2]

    def interrupted(self):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset())
    monkeypatch.setattr(Decoding, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny.answer(clip, asked[:1], max_new_tokens=4)
    monkeypatch.undo()
    found = [tiny.answer(clip, [one], max_new_tokens=4)[0].text for one in asked]
    assert found == expected


def test_a_lack_of_memory_never_makes_batches_larger(tiny, clip, monkeypatch):
    real, made = KVArena.__init__, []

    def too_large(self, layers, slots, *rest):
        made.append(slots)
        if slots > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(self, layers, slots, *rest)

    monkeypatch.setattr(KVArena, "__init__", too_large)
    session = tiny.session(1)
    session.add(ClipPrompts(clip, questions(4), max_new_tokens=2))
    while session.busy:
        session.step()
        assert session._session._budget == 1
    assert made[0] == 4
