"""A small InternVL: the stock model, its checkpoint, and both halves of it."""

import numpy as np
import pytest
import torch
from internvl_checkpoints import SIZE
from small_families import family_fixtures

from tango_core.types import VideoFrames

internvl, internvl_checkpoint, encoder, model, endless = family_fixtures("internvl3.5-8b")


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
