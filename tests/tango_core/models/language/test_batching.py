"""Requests answered together: the replies of one by one, and failures that stay alone."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from internvl_checkpoints import NUM_LAYERS as INTERNVL_LAYERS
from internvl_checkpoints import build_internvl, save_internvl
from llava_checkpoints import build_llava, save_llava
from qwen3_checkpoints import NUM_LAYERS as QWEN3_LAYERS
from qwen3_checkpoints import build_qwen3, save_qwen3
from qwen_checkpoints import NUM_LAYERS as QWEN_LAYERS
from qwen_checkpoints import build_qwen, save_qwen
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core import describe_model, load_language_model
from tango_core.compressors import build_method
from tango_core.compressors.base import LayerPruner
from tango_core.models.language.arena import KVArena
from tango_core.models.language.batching import BatchSession
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.prefill import Prefill, Segment
from tango_core.models.session import ClipPrompts
from tango_core.types import CompressedVideo, Prompt

PRUNERS = (None, None, "fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion")
NUM_LAYERS = {
    "llava-onevision-7b": 4,
    "llava-video-7b": 4,
    "qwen2.5-vl-7b": QWEN_LAYERS,
    "qwen3-vl-8b": QWEN3_LAYERS,
    "internvl3.5-8b": INTERNVL_LAYERS,
}


def run(model, requests, batch_tokens):
    """Answers or errors of every request, as the pipeline asks for them."""
    session = model.session(batch_tokens)
    found, waiting = {}, list(requests)[::-1]
    while waiting or session.busy:
        while waiting and not session.full:
            session.add(waiting.pop())
        found.update({id(request): result for request, result in session.step()})
    return [found[id(request)] for request in requests]


def texts(results):
    return [[answer.text for answer in one] for one in results]


def clip(generator, width, grid, kept, extra=0):
    total = grid[0] * grid[1] * grid[2]
    companions = torch.randn(kept, extra, width, generator=generator) if extra else None
    return CompressedVideo(
        torch.randn(kept, width, generator=generator),
        torch.randperm(total, generator=generator)[:kept].sort().values,
        grid,
        torch.arange(grid[0], dtype=torch.float64),
        companions=companions,
    )


def say_tokens(model, monkeypatch):
    monkeypatch.setattr(model.engine, "decode_text", lambda ids: " ".join(map(str, ids)))


@pytest.fixture(scope="module")
def tiny():
    return load_language_model(describe_model("tiny"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    llava = str(save_llava(build_llava(), tmp_path_factory.mktemp("llava")))
    qwen = str(save_qwen(build_qwen(), tmp_path_factory.mktemp("qwen")))
    qwen3 = str(save_qwen3(build_qwen3(), tmp_path_factory.mktemp("qwen3")))
    internvl = str(save_internvl(build_internvl(), tmp_path_factory.mktemp("internvl")))
    paths = (llava, llava, qwen, qwen3, internvl)
    return {
        name: load_language_model(name, path) for name, path in zip(NUM_LAYERS, paths, strict=True)
    }


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
    alone = texts(
        [
            tiny.answer(
                r.video,
                r.prompts,
                pruner=r.pruner,
                max_new_tokens=r.max_new_tokens,
                share_prefix=False,
            )
            for r in requests
        ]
    )
    assert len({text for one in alone for text in one}) > number // 5
    for batch_tokens in (None, 5000):
        assert texts(run(tiny, requests, batch_tokens)) == alone


@pytest.mark.parametrize("family", NUM_LAYERS)
def test_clips_and_methods_are_answered_together(models, monkeypatch, family):
    model = models[family]
    say_tokens(model, monkeypatch)
    monkeypatch.setattr(model.engine, "eos_ids", frozenset(range(0, model.spec.llm.vocab_size, 9)))
    generator, chosen = torch.Generator().manual_seed(1), random.Random(1)
    requests = []
    for index in range(21):
        name, pruner = PRUNERS[index % len(PRUNERS)], None
        if name is not None:
            layer = {"layer": 1} if name in ("fastv", "dart") else {}
            layers = NUM_LAYERS[family]
            pruner = build_method(name, retention=0.7, num_layers=layers, **layer).pruner
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
    alone = texts(
        [
            model.answer(
                one.video,
                one.prompts,
                pruner=one.pruner,
                positions=one.positions,
                max_new_tokens=one.max_new_tokens,
                share_prefix=False,
            )
            for one in requests
        ]
    )
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


class Launches(TorchDispatchMode):
    """Counts operators, and reads of a value by the host."""

    def __init__(self):
        super().__init__()
        self.launches = self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.launches += 1
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_a_step_of_decoding_reads_nothing_and_costs_the_same_for_any_number(tiny):
    """What a CUDA graph needs: the same operators, whatever the sequences are."""
    loop, counts = tiny.engine.layer_loop, []
    prompt = tiny.layout.lay_out(
        clip(torch.Generator().manual_seed(3), 128, (8, 8, 8), 30), Prompt("", "what color")
    )
    for number in (1, 8):
        arena = KVArena(loop.layers, number, 128, loop.dtype, cleared=True)
        segments = [Segment(prompt.spans, prompt.positions, arena.take()) for _ in range(number)]
        hidden = Prefill(loop, arena, segments).run()
        decoding = Decoding(loop, arena, 8, fixed=True)
        last = prompt.positions[-1].expand(number)
        decoding.begin(range(number), hidden, last, [[0] * len(loop.layers)] * number)
        with Launches() as counter:
            decoding.step()
        assert counter.reads == 0
        counts.append(counter.launches)
    assert counts[1] <= counts[0]
    # Most of them are views, which launch nothing.
    assert counts[0] <= 40 + 75 * len(loop.layers)
