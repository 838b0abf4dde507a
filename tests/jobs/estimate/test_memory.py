"""Memory of an actor: weights are those that are loaded, keys and values those of a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jobs.estimate import work
from jobs.estimate.memory import encoder_memory, language_memory
from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool
from tango_core.models import describe_model, load_encoder, load_language_model

ONE = {"longest": 100, "reply": 1, "batch_tokens": 1}


@pytest.fixture(scope="module")
def tiny():
    return describe_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def language(tiny):
    return load_language_model(tiny)


def loaded_bytes(*modules):
    tensors = {id(t): t for m in modules for t in (*m.parameters(), *m.buffers())}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_weights_are_those_that_an_actor_loads(tiny, language):
    encoder = load_encoder(tiny)
    found = encoder_memory(load_encoder(tiny, device="meta"), "cpu")
    assert found.weights == loaded_bytes(encoder.model, encoder.pooling_head)
    model = load_language_model(tiny, device="meta").engine.model
    found = language_memory(model, tiny, "cpu", **ONE)
    assert found.weights == loaded_bytes(language.engine.model)


def test_without_a_checkpoint_the_weights_follow_from_the_shape(tiny):
    model = load_language_model(tiny, device="meta").engine.model
    exact = language_memory(model, tiny, "cpu", **ONE).weights
    assert language_memory(None, tiny, "cpu", **ONE).weights == pytest.approx(exact, rel=0.05)


def test_keys_and_values_are_those_of_a_cache_of_that_length(tiny):
    from transformers import DynamicCache

    cache = DynamicCache()
    shape = (1, tiny.llm.num_kv_heads, 100, tiny.llm.head_dim)
    for layer in range(tiny.llm.num_layers):
        cache.update(torch.zeros(shape), torch.zeros(shape), layer)
    held = sum(t.numel() * t.element_size() for one in cache.layers for t in (one.keys, one.values))
    asked = {"longest": 98, "reply": 2, "batch_tokens": 1}
    assert language_memory(None, tiny, "cpu", **asked).kv == held
    # Of nine questions about a clip eight are answered at once, beside what they share.
    asked = {**asked, "together": 9, "prompts": 9}
    assert language_memory(None, tiny, "cpu", **asked).kv == (8 + 1) * held


COUNTS = work.Counts(100, 0, 40, 60, 300, 600, {"one": 40, "two": 10})
CELLS = tuple(
    work.CellTokens(name, cache, 50, 100, prompt, 120, 1000.0)
    for name, cache, prompt in (("a", "one", 100.0), ("b", "two", 200.0))
)


def rates(**cells):
    made = {name: work.CellRates(0.5, seconds, tokens) for name, (seconds, tokens) in cells.items()}
    return work.Rates(0.2, 1.0, made, ("run",))


def test_only_what_is_missing_is_decoded_and_encoded_and_everything_is_answered():
    seconds = work.stage_seconds(COUNTS, CELLS, rates(a=(2.0, 100), b=(3.0, 200)))
    assert seconds == {
        "decode": pytest.approx(0.2 * 40),
        "compress": pytest.approx(1.0 * 40 + 0.5 * 40 + 0.5 * 10),
        "answer": pytest.approx(100 * 2.0 + 100 * 3.0),
    }


def test_clips_with_stored_features_are_compressed_and_nothing_else():
    stored = replace(COUNTS, to_encode=0, from_features=40)
    known = rates(a=(2.0, 100))
    found = work.stage_seconds(stored, CELLS, known)
    assert "decode" not in found
    before = work.stage_seconds(COUNTS, CELLS, known)["compress"]
    assert found["compress"] == pytest.approx(before - 40 * known.encode_s)
    assert work.stage_seconds(stored, CELLS, replace(known, encode_s=None)) == found


def test_a_method_that_was_never_measured_is_scaled_by_its_tokens():
    seconds = work.stage_seconds(COUNTS, CELLS, rates(a=(2.0, 100)))
    assert seconds["answer"] == pytest.approx(100 * 2.0 + 100 * 2.0 * 200 / 100)


def test_what_was_never_measured_is_not_known():
    seconds = work.stage_seconds(COUNTS, CELLS, work.Rates())
    timing = work.time_job(seconds, None, 8, price_per_hour=3.6)
    assert timing["unknown"] == ["decode", "compress", "answer"]
    assert (timing["wall_s"], timing["bottleneck"], timing["cost"]) == (None, None, None)


def test_a_loop_decodes_beside_the_other_stages_which_add_up():
    seconds = {"decode": 8, "compress": 20, "answer": 500}
    timing = work.time_job(seconds, None, 8, price_per_hour=3.6)
    assert timing["wall_s"] == 520 + work.LOOP_START_S
    assert timing["bottleneck"] == "answer"
    assert timing["cost"] == pytest.approx(timing["wall_s"] / 1000)
    assert work.time_job({**seconds, "decode": 800}, None, 8)["wall_s"] == 800 + work.LOOP_START_S
    assert work.time_job(seconds, None, 1)["wall_s"] == 528 + work.LOOP_START_S, (
        "one CPU does one thing at a time"
    )


def test_the_slowest_stage_counts_on_ray():
    pools = Pools(compress=ActorPool(num_cpus=1), answer=ActorPool((2, 10), num_cpus=0.5))
    timing = work.time_job({"decode": 600, "compress": 65, "answer": 500}, pools, num_cpus=8)
    workers = {stage["name"]: stage["workers"] for stage in timing["stages"]}
    assert workers == {"decode": 2, "compress": 1, "answer": 10}
    assert timing["bottleneck"] == "decode"
    assert timing["wall_s"] == pytest.approx(300 + work.RAY_START_S)


def test_workers_that_share_cpus_are_as_fast_as_the_cpus():
    seconds = {"decode": 60, "compress": 60, "answer": 80}
    assert work.time_job(seconds, Pools(), num_cpus=2)["wall_s"] == pytest.approx(
        100 + work.RAY_START_S
    )
    assert work.time_job(seconds, Pools(), num_cpus=64)["wall_s"] == pytest.approx(
        80 + work.RAY_START_S
    )
    gpus = Pools(compress=ActorPool(num_gpus=0.5), answer=ActorPool(num_gpus=0.5))
    assert work.time_job(seconds, gpus, num_cpus=1)["wall_s"] == pytest.approx(
        80 + work.RAY_START_S
    )
