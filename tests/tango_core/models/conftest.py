import numpy as np
import pytest
import torch
from llava_checkpoints import IMAGE_SIZE, WIDTH, build_llava, save_llava

from tango_core.types import CompressedVideo, VideoFrames


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def stock():
    return build_llava()


@pytest.fixture(scope="session")
def checkpoint(stock, tmp_path_factory):
    return save_llava(stock, tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def headed(tmp_path_factory):
    """A checkpoint whose tower has its pooling head."""
    return save_llava(build_llava(head=True), tmp_path_factory.mktemp("headed"))


@pytest.fixture(scope="session")
def frames():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (3, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.array([0.0, 0.5, 1.0]))


@pytest.fixture(scope="session")
def video():
    """20 of 48 random tokens of a clip of 3 frames on a 4 x 4 grid."""
    generator = torch.Generator().manual_seed(5)
    return CompressedVideo(
        tokens=torch.randn(20, WIDTH, generator=generator),
        indices=torch.randperm(48, generator=generator)[:20].sort().values,
        grid=(3, 4, 4),
        timestamps=torch.arange(3, dtype=torch.float64),
    )
