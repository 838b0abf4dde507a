"""Memory of an actor: weights are those that are loaded, keys and values those of a cache."""

from __future__ import annotations

import pytest
import torch

from jobs.estimate.memory import encoder_memory, language_memory
from tango_core.models import describe_model, load_encoder, load_language_model


@pytest.fixture(scope="module")
def tiny():
    return describe_model("tiny", device="cpu")


def loaded_bytes(*modules):
    tensors = {id(t): t for m in modules for t in (*m.parameters(), *m.buffers())}.values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_weights_are_those_that_an_actor_loads(tiny):
    encoder, language = load_encoder(tiny), load_language_model(tiny)
    found = encoder_memory(load_encoder(tiny, device="meta"))
    assert found.weights == loaded_bytes(encoder.model, encoder.pooling_head)
    model = load_language_model(tiny, device="meta").engine.model
    found = language_memory(model, tiny, 100, 1)
    assert found.weights == loaded_bytes(language.engine.model)


def test_without_a_checkpoint_the_weights_follow_from_the_shape(tiny):
    model = load_language_model(tiny, device="meta").engine.model
    exact = language_memory(model, tiny, 100, 1).weights
    assert language_memory(None, tiny, 100, 1).weights == pytest.approx(exact, rel=0.05)


def test_keys_and_values_are_those_of_a_cache_of_that_length(tiny):
    from transformers import DynamicCache

    cache = DynamicCache()
    shape = (1, tiny.llm.num_kv_heads, 100, tiny.llm.head_dim)
    for layer in range(tiny.llm.num_layers):
        cache.update(torch.zeros(shape), torch.zeros(shape), layer)
    held = sum(t.numel() * t.element_size() for one in cache.layers for t in (one.keys, one.values))
    assert language_memory(None, tiny, 100, 1).kv == held
    assert language_memory(None, tiny, 100, 3).kv == 4 * held  # the prefix, and three copies
