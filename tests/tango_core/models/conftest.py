import numpy as np
import pytest
import torch
from llava_checkpoints import IMAGE_SIZE, WIDTH, build_llava, save_llava
from small_families import SMALL_FAMILIES

from tango_core.models import describe_model, load_language_model
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
def small_paths(tmp_path_factory):
    """Entry of `MODELS` -> a small checkpoint with random weights."""
    paths = {
        name: str(one.save(one.build(), tmp_path_factory.mktemp(name)))
        for name, one in SMALL_FAMILIES.items()
    }
    return {**paths, "llava-video-7b": paths["llava-onevision-7b"]}


@pytest.fixture(scope="module")
def tiny():
    """The language half of the embedded model."""
    return load_language_model(describe_model("tiny", device="cpu"))


@pytest.fixture
def no_gradients():
    """For modules that call a stock model."""
    with torch.inference_mode():
        yield


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
