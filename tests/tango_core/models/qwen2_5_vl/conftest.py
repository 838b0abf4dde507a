"""A small Qwen2.5-VL: the stock model, its checkpoint, and both halves of it."""

import pytest
from qwen_by_hand import NAME
from qwen_checkpoints import build_qwen, save_qwen

from tango_core.models import load_encoder, load_language_model


@pytest.fixture(scope="session")
def qwen():
    """The stock model with random weights."""
    return build_qwen()


@pytest.fixture(scope="session")
def qwen_checkpoint(qwen, tmp_path_factory):
    """Its checkpoint directory."""
    return str(save_qwen(qwen, tmp_path_factory.mktemp("qwen")))


@pytest.fixture(scope="session")
def encoder(qwen_checkpoint):
    """Its vision half, loaded by us."""
    return load_encoder(NAME, qwen_checkpoint)


@pytest.fixture(scope="session")
def model(qwen_checkpoint):
    """Its language half, loaded by us."""
    return load_language_model(NAME, qwen_checkpoint)


@pytest.fixture(scope="session")
def endless(qwen_checkpoint):
    """The same model, whose replies only end at their bound."""
    language_model = load_language_model(NAME, qwen_checkpoint)
    language_model.engine.eos_ids = frozenset()
    return language_model
