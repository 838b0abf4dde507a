"""A small InternVL: the stock model, its checkpoint, and both halves of it."""

import numpy as np
import pytest
import torch
from internvl_checkpoints import NAME, SIZE, build_internvl, save_internvl

from tango_core.models import load_encoder, load_language_model
from tango_core.types import VideoFrames


@pytest.fixture(scope="session")
def internvl():
    """The stock model with random weights."""
    return build_internvl()


@pytest.fixture(scope="session")
def internvl_checkpoint(internvl, tmp_path_factory):
    """Its checkpoint directory."""
    return str(save_internvl(internvl, tmp_path_factory.mktemp("internvl")))


@pytest.fixture(scope="session")
def encoder(internvl_checkpoint):
    """Its vision half, loaded by us."""
    return load_encoder(NAME, internvl_checkpoint)


@pytest.fixture(scope="session")
def model(internvl_checkpoint):
    """Its language half, loaded by us."""
    return load_language_model(NAME, internvl_checkpoint)


@pytest.fixture(scope="session")
def endless(internvl_checkpoint):
    """The same model, whose replies only end at their bound."""
    language_model = load_language_model(NAME, internvl_checkpoint)
    language_model.engine.eos_ids = frozenset()
    return language_model


@pytest.fixture(scope="session")
def frames():
    """Three frames of noise."""
    shape = (3, SIZE, SIZE, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return VideoFrames(pixels, np.arange(3.0))


@pytest.fixture(scope="session")
def pixels(frames):
    """The same frames as the stock model takes them."""
    mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    values = torch.tensor(frames.pixels).float() / 255
    return ((values - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2)
