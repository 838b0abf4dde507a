"""Memory of an actor: weights are those that are loaded, keys and values those of a cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from qwen3_checkpoints import build_qwen3, frames_of, save_qwen3

from jobs.estimate.memory import encoder_memory, language_memory
from jobs.estimate.work import grid_of
from tango_core.models import describe_model, load_encoder, load_language_model
from tango_core.models.base import ClipPrompts
from tango_core.models.language import batching
from tango_core.models.language.batching import bytes_per_token
from tango_core.models.language.engine import auto_batch_tokens
from tango_core.types import CompressedVideo, Prompt

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
    # Each question about a clip has a copy of what they share, which is held once more; one of nine
    # questions is answered later.
    asked = {**asked, "together": 9, "prompts": 9}
    assert language_memory(None, tiny, "cpu", **asked).kv == (8 + 1) * held


@pytest.mark.parametrize(("together", "batch_tokens"), [(1, None), (1, 300), (3, 300), (3, 1)])
def test_keys_and_values_are_those_that_a_session_holds(
    tiny, language, monkeypatch, together, batch_tokens
):
    held, run_segments = [], batching.run_segments

    def noted(loop, segments, **options):
        output = run_segments(loop, segments, **options)
        caches = {id(one.cache): one.cache for one in segments}
        held.append(sum(one.lengths[0] for one in caches.values()))
        return output

    monkeypatch.setattr(batching, "run_segments", noted)
    session = language.session(batch_tokens)
    video = CompressedVideo(
        torch.zeros(60, 128), torch.arange(60), (4, 4, 4), torch.arange(4, dtype=torch.float64)
    )
    prompts = [Prompt("", "which color?"), Prompt("", "which shape?"), Prompt("", "what moves?")]
    for _ in range(12):
        session.add(ClipPrompts(video, prompts[:together], max_new_tokens=4))
    length = len(language.layout.lay_out(video, prompts[0]))
    while session.busy:
        session.step()
    asked = {"longest": length, "reply": 4, "together": together, "prompts": 12 * together}
    asked["batch_tokens"] = batch_tokens
    promised = language_memory(None, tiny, "cpu", **asked).kv
    most = max(held) * bytes_per_token(language.engine.layers)
    assert 0.6 * promised <= most <= promised


def test_an_automatic_budget_is_that_of_the_session(tiny, language):
    many = {"longest": 100, "reply": 1, "prompts": 10_000}
    of_auto = language_memory(None, tiny, "cpu", **many).kv
    told = {**many, "batch_tokens": auto_batch_tokens(language.engine.layer_loop)}
    assert of_auto == language_memory(None, tiny, "cpu", **told).kv
    assert language_memory(None, tiny, "cuda", **many).kv > of_auto


def test_frames_at_once_are_those_of_the_job_s_device(tiny):
    encoder = load_encoder(describe_model("tiny", device="cuda", dtype="float32"), device="meta")
    on_cpu, on_gpu = encoder_memory(encoder, "cpu"), encoder_memory(encoder, "cuda")
    assert on_cpu.weights == on_gpu.weights
    assert on_cpu.activations < on_gpu.activations
    assert encoder_memory(load_encoder(tiny, device="meta"), "cpu") == on_cpu


def test_an_encoder_of_tokens_of_several_rows_counts_what_it_gives(tmp_path):
    path = str(save_qwen3(build_qwen3(), tmp_path))
    spec = describe_model("qwen3-vl-8b", path, num_frames=8, max_pixels=40 * 64, device="cpu")
    found = encoder_memory(load_encoder(spec, device="meta"), "cpu")
    plain = encoder_memory(load_encoder(replace(spec, companions=0), device="meta"), "cpu")
    _, grid = grid_of(spec)
    given = load_encoder(spec).encode(frames_of(8, grid))
    held = (given.tokens.numel() + given.companions.numel()) * 4
    assert found.activations - plain.activations == 2 * held
