"""Steps of decoding over all slots, as on a GPU: idle slots do no harm, and a graph is kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from tango_core.compressors import build_method
from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.models.language.arena import KVArena
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.prefill import Prefill, Segment
from tango_core.types import CompressedVideo, Prompt

NEW_TOKENS = 20


def clip(seed, kept=30):
    generator = torch.Generator().manual_seed(seed)
    return CompressedVideo(
        torch.randn(kept, 128, generator=generator),
        torch.arange(kept),
        (8, 8, 8),
        torch.arange(8, dtype=torch.float64),
    )


def masked_kernel(queries, keys, values, attn_mask=None, scale=1.0, **options):
    """As the memory-efficient kernel of CUDA: what is masked is multiplied by 0, NaN included."""
    if attn_mask is None:
        return functional.scaled_dot_product_attention(
            queries, keys, values, scale=scale, **options
        )
    logits = (queries @ keys.mT * scale).masked_fill(~attn_mask, -torch.inf)
    return logits.softmax(dim=-1) @ values


@torch.inference_mode()
def test_a_slot_that_was_idle_from_the_beginning_is_as_good_as_new(tiny, monkeypatch):
    loop = tiny.engine.layer_loop
    prompts = [tiny.layout.lay_out(clip(seed), Prompt("", "what color")) for seed in (1, 2)]

    def begin(arena, decoding, prompt):
        slot = arena.take()
        hidden = Prefill(loop, arena, [Segment(prompt.spans, prompt.positions, slot)]).run()
        last = prompt.positions[..., -1:]
        decoding.begin([slot], hidden, last, [[0] * len(loop.layers)])
        return slot

    def replies(steps_before):
        arena = KVArena(loop.layers, 2, 128, loop.dtype, cleared=True)
        decoding = Decoding(loop, arena, NEW_TOKENS, fixed=True)
        slots = [begin(arena, decoding, prompts[0])]
        for _ in range(steps_before):
            decoding.step()
        slots.append(begin(arena, decoding, prompts[1]))
        for _ in range(5):
            decoding.step()
        return decoding.read()[slots[1], :6].tolist()

    expected = replies(0)
    kernel = SimpleNamespace(scaled_dot_product_attention=masked_kernel)
    monkeypatch.setattr("tango_core.models.kernels.functional", kernel)
    assert replies(3) == expected


class Graphs:
    """Stands for a GPU's graphs: doing the work again."""

    def __init__(self, refuses=False):
        self.recorded = self.replayed = 0
        self.refuses = refuses

    def record(self, work):
        self.recorded += 1
        if self.refuses:
            return None

        def replay():
            self.replayed += 1
            work()

        return SimpleNamespace(replay=replay)


@pytest.fixture
def on_gpu(tiny, monkeypatch):
    """Sessions with the rules of a GPU; call it for their graphs."""

    class Recorded(Decoding):
        def __init__(self, *arguments):
            super().__init__(*arguments, fixed=True)
            self._records = True

    def make(**options):
        graphs = Graphs(**options)
        monkeypatch.setattr(tiny.engine.layer_loop, "recorder", graphs)
        return graphs

    monkeypatch.setattr("tango_core.models.language.batching.Decoding", Recorded)
    monkeypatch.setattr(batching, "KVArena", lambda *sizes: KVArena(*sizes, cleared=True))
    monkeypatch.setattr(tiny.engine, "decode_text", lambda ids: " ".join(map(str, ids)))
    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset())
    return make


def answered(tiny, requests):
    """Replies, one request after the other in one session."""
    session, found = tiny.session(4000), []
    session._session = BatchSession(tiny.engine, 4000, padded=True)
    for request in requests:
        session.add(request)
        while session.busy:
            for _, answers in session.step():
                assert not isinstance(answers, Exception), answers
                found.append([answer.text for answer in answers])
    return found


def request(seed, pruner=None):
    prompts = [Prompt("", f"what color is the {word}") for word in ("cross", "circle")]
    return ClipPrompts(clip(seed), prompts, pruner=pruner, max_new_tokens=NEW_TOKENS)


@pytest.mark.parametrize("refuses", [False, True])
def test_replies_are_the_same_with_graphs_and_without(tiny, on_gpu, monkeypatch, refuses):
    graphs = on_gpu(refuses=refuses)
    requests = [request(seed) for seed in range(3)]
    found = answered(tiny, requests)
    monkeypatch.undo()
    monkeypatch.setattr(tiny.engine, "decode_text", lambda ids: " ".join(map(str, ids)))
    monkeypatch.setattr(tiny.engine, "eos_ids", frozenset())
    expected = [
        [answer.text for answer in tiny.answer(one.video, one.prompts, max_new_tokens=NEW_TOKENS)]
        for one in requests
    ]
    assert found == expected
    # Once per arena: one that could not be recorded is not tried again.
    assert graphs.recorded == 1
    assert (graphs.replayed > 0) is not refuses


def test_a_graph_outlives_the_sequences_that_a_pruner_has_shortened(tiny, on_gpu):
    graphs = on_gpu()
    pruner = build_method("fastv", retention=0.6, num_layers=4).pruner
    answered(tiny, [request(seed, pruner) for seed in range(3)])
    assert graphs.recorded == 1
