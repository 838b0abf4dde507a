"""Requests that are answered together get the replies of one by one."""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass, replace

import pytest
import torch
from batched_requests import clip, run, say_tokens, texts
from small_families import SMALL_FAMILIES
from without_cache import answered

from tango_core.compressors import build_method
from tango_core.compressors.base import LayerPruner
from tango_core.models import load_language_model
from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.models.language.batching import MAX_BATCH, BatchSession, most_likely
from tango_core.models.language.packed_pass import visual_spans
from tango_core.models.language.prompt import LaidOutPrompt
from tango_core.types import NotFiniteError, Prompt

PRUNERS = (None, None, "fastv", "dart", "pyramiddrop", "sparsevlm", "framefusion")
# The others differ from these in nothing that batching sees.
QUICK = ("llava-video-7b", "qwen3-vl-8b", "qwen3.5-9b")
FAMILIES = {**SMALL_FAMILIES, "llava-video-7b": SMALL_FAMILIES["llava-onevision-7b"]}


def one_by_one(model, requests):
    return [model.answer(**{**vars(one), "share_prefix": False}) for one in requests]


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
    session = tiny.session(1)
    session.add(requests[2])
    session.step()
    assert session._session._budget == 1, "never larger than asked for"


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


@pytest.mark.parametrize("batch_tokens", [1, 4000])
def test_tokens_that_are_no_numbers_touch_no_other_clip(tiny, monkeypatch, requests, batch_tokens):
    say_tokens(tiny, monkeypatch)
    expected = texts(run(tiny, requests, 1))
    results = run(tiny, [*requests[:3], with_nan(requests[3]), *requests[4:]], batch_tokens)
    assert isinstance(results[3], NotFiniteError)
    assert texts([*results[:3], *results[4:]]) == [*expected[:3], *expected[4:]]


def test_a_clip_of_another_model_is_refused_before_the_batch(tiny, monkeypatch, requests):
    session = tiny.session(4000)
    narrow = replace(requests[0].video, tokens=requests[0].video.tokens[:, :64])
    with pytest.raises(ValueError, match="video tokens have width 64"):
        session.add(replace(requests[0], video=narrow))
    assert not session.busy


WORDS = ("cross", "circle", "square", "triangle", "star", "ring")
PLACES = ("left", "right", "before", "after")


def questions(number):
    pairs = [(word, place) for place in PLACES for word in WORDS][:number]
    return [Prompt("", f"what color is the {word} {place}") for word, place in pairs]


@pytest.mark.parametrize("number", [MAX_BATCH, MAX_BATCH + 1, 24])
@pytest.mark.parametrize("batch_tokens", [1, 4000])
def test_a_clip_is_prefilled_once_however_many_its_questions(
    tiny, monkeypatch, number, batch_tokens
):
    video = clip(torch.Generator().manual_seed(3), 128, (8, 8, 8), 60)
    asked = questions(number)
    alone = tiny.answer(video, asked, max_new_tokens=6, share_prefix=False)
    run_segments, visual = batching.run_segments, []

    def watched(loop, segments, **options):
        visual.extend(len(visual_spans(one.spans)) for one in segments)
        return run_segments(loop, segments, **options)

    monkeypatch.setattr(batching, "run_segments", watched)
    (answers,) = run(tiny, [ClipPrompts(video, asked, max_new_tokens=6)], batch_tokens)
    assert [one.text for one in answers] == [one.text for one in alone]
    assert sum(visual) == 1


def with_nan(request):
    tokens = request.video.tokens.clone()
    tokens[3, 5] = float("nan")
    return replace(request, video=replace(request.video, tokens=tokens))


def test_the_first_of_equal_logits_is_chosen_and_none_of_others():
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, nan, 1.0], [0.0, inf, 1.0], [-inf, -1.0, -inf]])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert most_likely(logits.to(dtype)).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("method", [None, "fastv"])
@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_error_names_the_half_and_the_dtype(tiny, requests, method, share_prefix):
    pruner = method and build_method(method, retention=0.6, num_layers=4).pruner
    words = r"the language model computed NaN or infinite logits in float32; set model\.dtype"
    bad = replace(with_nan(requests[0]), pruner=pruner, share_prefix=share_prefix)
    with pytest.raises(NotFiniteError, match=words):
        tiny.answer(**vars(bad))


@pytest.fixture
def emptied(monkeypatch):
    """Called whenever the memory of a device is given back."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: [one() for one in calls])
    return calls


def test_a_clip_that_does_not_fit_at_first_is_uploaded_again(tiny, monkeypatch, requests, emptied):
    tries, freed = [], []
    emptied.append(lambda: freed.append(tries[0]() is None))

    def place(tokens):
        large = torch.zeros(1000)
        tries.append(weakref.ref(large))
        if len(tries) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    monkeypatch.setattr(tiny.engine, "place", place)
    (answers,) = run(tiny, requests[:1], 64)
    assert [one.status for one in answers] == ["ok", "ok"]
    assert freed == [True], "memory was freed once, when the first try held nothing any more"


def test_memory_is_freed_when_a_failed_batch_is_gone(tiny, monkeypatch, requests, emptied):
    parts, freed = [], []
    emptied.append(lambda: freed.append(parts[0]() is None))
    run_segments = batching.run_segments

    def fails_first(*arguments, **options):
        if not parts:
            layer = torch.zeros(1000)
            parts.append(weakref.ref(layer))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_segments(*arguments, **options)

    monkeypatch.setattr(batching, "run_segments", fails_first)
    results = run(tiny, requests[:2], 4096)
    assert not any(isinstance(one, Exception) for one in results)
    assert freed == [True]


def test_a_clip_that_never_fits_is_an_error_of_its_own(tiny, monkeypatch, requests):
    def place(tokens):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tiny.engine, "place", place)
    with pytest.raises(torch.OutOfMemoryError):
        tiny.session(64).add(requests[0])


NUM_NEW = 12
PROMPTS = [
    Prompt("", " ".join(f"w{(7 * index + step) % 80}" for step in range(3 + 5 * index % 11)))
    for index in range(MAX_BATCH + 3)
]


@pytest.fixture(scope="module")
def model(checkpoint):
    language_model = load_language_model("llava-onevision-7b", str(checkpoint))
    language_model.engine.eos_ids = frozenset()
    return language_model


@pytest.fixture
def replies(model, monkeypatch):
    """Token ids instead of text, so that every token counts."""
    monkeypatch.setattr(model.engine, "decode_text", lambda ids: " ".join(map(str, ids)))

    def run(prompts: list[LaidOutPrompt], **options) -> list[list[int]]:
        answers = answered(model.engine, prompts, max_new_tokens=NUM_NEW, **options)
        return [[int(token) for token in one.text.split()] for one in answers]

    return run


@pytest.mark.parametrize(
    ("texts", "num_shared"),
    [
        (["w1 w2 w3 w4", "w1 w2 w5", "w1 w2 w3"], 2),
        (["w1 w2", "w1 w2 w3", "w9"], 0),
        (["w1 w2 w3", "w1 w2 w3"], 5),  # a prompt keeps a token of its own, of six with the closing
    ],
)
def test_words_that_all_questions_begin_with_are_prefilled_once(
    model, replies, video, monkeypatch, texts, num_shared
):
    prompts = [model.layout.lay_out(video, Prompt("", text)) for text in texts]
    alone = replies(prompts, share_prefix=False)
    run, lengths = model.engine.layer_loop.run, []

    def counted(hidden, *arguments, **options):
        lengths.append(len(hidden))
        return run(hidden, *arguments, **options)

    monkeypatch.setattr(model.engine.layer_loop, "run", counted)
    assert replies(prompts) == alone
    own = sum(len(prompt.question) - num_shared for prompt in prompts)
    assert lengths[0] == prompts[0].prefix_length + num_shared + own
    assert max(lengths[1:NUM_NEW]) <= len(prompts)  # the rest is decoding


def test_a_reply_ends_with_the_end_of_turn_token(model, replies, video, monkeypatch):
    prompts = [model.layout.lay_out(video, prompt) for prompt in PROMPTS[:5]]
    endless = replies(prompts)
    end = endless[0][3]
    monkeypatch.setattr(model.engine, "eos_ids", frozenset({end}))
    expected = [reply[: reply.index(end) + 1] if end in reply else reply for reply in endless]
    assert len({len(reply) for reply in expected}) > 1
    for share_prefix in (True, False):
        assert replies(prompts, share_prefix=share_prefix) == expected
    answers = model.answer(video, PROMPTS[:5], max_new_tokens=NUM_NEW)
    assert [one.new_tokens for one in answers] == [len(reply) for reply in expected]
