"""Requests answered together that fail, alone or for want of memory: the others are answered."""

from dataclasses import dataclass, replace

import pytest
import torch
from batched_requests import clip, run, say_tokens, texts

from tango_core.compressors.base import LayerPruner
from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.models.language.batching import BatchSession
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


@pytest.fixture
def fails(monkeypatch):
    """Let passes over more than a number of segments raise; returns the sizes of all passes."""
    run_segments, sizes = batching.run_segments, []

    def fails(error, most, *, decoding):
        def watched(loop, segments):
            sizes.append(len(segments))
            continues = all(one.cache.lengths[0] for one in segments)
            if len(segments) > most and decoding is continues:
                raise error
            return run_segments(loop, segments)

        monkeypatch.setattr(batching, "run_segments", watched)
        return sizes

    return fails


@pytest.mark.parametrize("decoding", [True, False])
@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA out of memory"), MemoryError(), ValueError("another fault")]
)
def test_a_batch_that_fails_is_repeated_in_halves(
    tiny, monkeypatch, requests, fails, error, decoding
):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    sizes = fails(error, 3, decoding=decoding)
    assert texts(run(tiny, requests, 4000)) == expected
    assert max(sizes) > 3


def test_the_questions_of_a_clip_are_answered_one_by_one_without_memory(
    tiny, monkeypatch, requests, fails
):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests[:2], 1))
    fails(MemoryError(), 1, decoding=False)
    session = tiny.session(4000)
    for one in requests[:2]:
        session.add(one)
    found = {id(one): answers for one, answers in session.step()}
    assert texts([found[id(one)] for one in requests[:2]]) == expected
    assert session._session._budget < 100, "later batches are smaller"


def test_what_never_fits_is_an_error_of_each_request(tiny, requests, fails):
    fails(torch.OutOfMemoryError("CUDA out of memory"), 0, decoding=False)
    results = run(tiny, requests[:3], 4000)
    assert all(isinstance(one, torch.OutOfMemoryError) for one in results)


def test_a_guard_that_raises_ends_the_work(tiny, monkeypatch, requests):
    class LostError(Exception):
        pass

    def lost(error):
        raise LostError from error

    session = tiny.session(4000, lost)
    session.add(replace(requests[0], pruner=Refuses(0.5, 2)))
    with pytest.raises(LostError):
        session.step()


def test_the_budget_bounds_a_batch(tiny, monkeypatch, requests):
    """A part of a request that is larger is answered alone."""
    requests = [
        replace(one, prompts=one.prompts[: 1 + index % 2], max_new_tokens=3 + 9 * (index % 3))
        for index, one in enumerate(requests * 3)
    ]
    budget, held = 300, []  # a prefix counts too
    generate = BatchSession._generate

    def watched(self, parts):
        held.append((len(parts), sum(one.tokens for one in parts)))
        generate(self, parts)

    monkeypatch.setattr(BatchSession, "_generate", watched)
    run(tiny, requests, budget)
    assert max(number for number, _ in held) > 1
    assert all(tokens <= budget or number == 1 for number, tokens in held)


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
