"""A small Qwen3-VL: the stock model, its checkpoint, and both halves of it."""

import pytest
from qwen3_checkpoints import NAME, build_qwen3, save_qwen3

from tango_core.models import load_encoder, load_language_model


@pytest.fixture(scope="session")
def qwen3():
    """The stock model with random weights."""
    return build_qwen3()


@pytest.fixture(scope="session")
def qwen3_checkpoint(qwen3, tmp_path_factory):
    """Its checkpoint directory."""
    return str(save_qwen3(qwen3, tmp_path_factory.mktemp("qwen3")))


@pytest.fixture(scope="session")
def encoder(qwen3_checkpoint):
    """Its vision half, loaded by us."""
    return load_encoder(NAME, qwen3_checkpoint)


@pytest.fixture(scope="session")
def endless(qwen3_checkpoint):
    """Its language half, loaded by us, whose replies only end at their bound."""
    language_model = load_language_model(NAME, qwen3_checkpoint)
    language_model.engine.eos_ids = frozenset()
    return language_model
