"""Long and short sequences, where a slot costs its whole capacity: apart, and in bounded memory."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.models.base import ClipPrompts
from tango_core.models.language.arena import KVArena
from tango_core.models.language.batching import BatchSession, capacity_of, size_of
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.prefill import Prefill
from tango_core.types import CompressedVideo, Prompt


def request(kept, seed, questions=1, new=3):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(4096, generator=generator)[:kept].sort().values
    tokens = torch.randn(kept, 128, generator=generator)
    times = torch.arange(64, dtype=torch.float64)
    words = random.Random(seed).choices(("cross", "circle", "star", "ring"), k=questions)
    prompts = [Prompt("", f"what color is the {word} {n}") for n, word in enumerate(words)]
    return ClipPrompts(
        CompressedVideo(tokens, indices, (64, 8, 8), times), prompts, max_new_tokens=new
    )


def padded(model, budget):
    """A session with the rules of a GPU, where all of a slot is memory."""
    session = model.session(budget)
    session._session = BatchSession(model.engine, budget, padded=True)
    return session


def run(session, requests):
    """Texts of every request, and which of them were finished in which order."""
    found, order, waiting = {}, [], list(requests)[::-1]
    while waiting or session.busy:
        while waiting and not session.full:
            session.add(waiting.pop())
        for request, answers in session.step():
            found[id(request)] = [answer.text for answer in answers]
            order.append(requests.index(request))
    return [found[id(one)] for one in requests], order


@pytest.fixture
def say_tokens(tiny, monkeypatch):
    monkeypatch.setattr(tiny.engine, "decode_text", lambda ids: " ".join(map(str, ids)))


@pytest.fixture
def made(monkeypatch):
    """(slots, capacity) of every arena."""
    real, found = KVArena.__init__, []

    def noted(self, layers, slots, capacity, *rest):
        found.append((slots, capacity))
        real(self, layers, slots, capacity, *rest)

    monkeypatch.setattr(KVArena, "__init__", noted)
    return found


class Launches(TorchDispatchMode):
    """Names the operators."""

    def __init__(self):
        super().__init__()
        self.names = []

    @property
    def launches(self):
        return len(self.names)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


def sweep(clips, methods=4):
    """Full and 10 %, method after method and clip after clip."""
    kept = (900, *(90,) * (methods - 1))
    return [request(kept[n % methods], n, questions=1 + n % 3) for n in range(clips * methods)]


def test_sizes_are_powers_of_two_and_capacities_waste_little():
    assert [size_of(need) for need in (1, 256, 257, 6000)] == [256, 256, 512, 8192]
    for need in range(1, 9000, 7):
        capacity = capacity_of(need, size_of(need))
        assert need <= capacity <= max(need * 1.25, need + 64)


def test_long_and_short_sequences_do_not_share_an_arena(tiny, made, say_tokens, monkeypatch):
    requests = sweep(10)
    expected, _ = run(tiny.session(1), requests)
    made.clear()
    step, costs = Decoding.step, []

    def watched(self):
        held = max(self._arena.lengths[0][slot] for slot in self._active)
        costs.append(self._arena.capacity / held)
        step(self)

    monkeypatch.setattr(Decoding, "step", watched)
    found, _ = run(padded(tiny, 12_000), requests)
    assert found == expected
    assert max(costs) < 2, "no slot has more than twice the room of the longest in it"
    assert len({size_of(capacity) for _, capacity in made}) == 2
    assert len(made) <= 6, "an arena that is set aside is used again"


def test_arenas_stay_within_the_budget(tiny, say_tokens, monkeypatch):
    budget, held = 9000, []
    session = padded(tiny, budget)
    run_pass = Prefill.run

    def watched(self):
        batch = session._session
        held.append(batch._arena.tokens + batch._shelf.tokens)
        return run_pass(self)

    monkeypatch.setattr(Prefill, "run", watched)
    run(session, sweep(8))
    assert len(held) > 3
    assert max(held) <= budget


def test_one_that_came_earlier_is_not_overtaken_for_ever(tiny, say_tokens):
    """One long sequence among many short ones, of which there are always some."""
    requests = [request(90, n) for n in range(300)]
    requests[20] = request(900, 20)
    _, order = run(padded(tiny, 6000), requests)
    assert order.index(20) < 20 + 150


def test_prefixes_and_failures_in_arenas_that_are_set_aside(tiny, say_tokens, monkeypatch):
    """More questions than one part holds, and a lack of memory while others wait."""
    requests = [request((700, 90)[n % 2], n, questions=(12, 3)[n % 2]) for n in range(8)]
    expected, _ = run(tiny.session(1), requests)
    step = Decoding.step
    together = []

    def fails_at_times(self):
        together.append(len(self._active) > 2)
        if together[-1] and sum(together) in (3, 9):
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(self)

    monkeypatch.setattr(Decoding, "step", fails_at_times)
    session = padded(tiny, 14_000)
    found, _ = run(session, requests)
    assert found == expected
    assert sum(together) >= 9
    assert session._session._budget < 14_000


def test_short_replies_are_looked_at_after_every_step(tiny, say_tokens, monkeypatch):
    step, steps = Decoding.step, []

    def counted(self):
        steps.append(len(self._active))
        step(self)

    monkeypatch.setattr(Decoding, "step", counted)
    asked = request(90, 1, new=16)
    ((text,),), _ = run(tiny.session(1), [asked])
    words = text.split()
    second = int(words[1])
    assert words.index(words[1]) == 1
    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset([second]))
    steps.clear()
    found, _ = run(padded(tiny, 4000), [asked])
    assert found == [[" ".join(words[:2])]]
    assert len(steps) == 1
    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset())
    looks, read = [], Decoding.read

    def noted(self):
        looks.append(len(steps))
        return read(self)

    monkeypatch.setattr(Decoding, "read", noted)
    steps.clear()
    run(padded(tiny, 4000), [replace(asked, max_new_tokens=13)])
    assert looks == [0, 1, 2, 3, 7, 11, 12]


def test_only_a_slot_that_was_used_is_set_to_zero_and_all_layers_at_once(tiny):
    layers = tiny.engine.layers
    arena = KVArena(layers, 2, 64, torch.float32, cleared=True)
    assert all(not tensor.any() for tensor in (*arena.keys, *arena.values))
    with Launches() as first:
        slot = arena.take()
    assert first.launches == 0
    nan = torch.full((arena.keys[0].shape[1], 5, arena.keys[0].shape[3]), torch.nan)
    for layer in range(len(layers)):
        arena.write(layer, slot, nan, nan)
    arena.give_back(slot)
    with Launches() as again:
        assert arena.take() == slot
    assert all(not tensor.any() for tensor in (*arena.keys, *arena.values))
    assert again.names.count("_foreach_zero_") == 1
    assert not any("zero" in name or "fill" in name for name in again.names if "each" not in name)
