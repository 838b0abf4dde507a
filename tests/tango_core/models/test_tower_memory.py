"""What the towers keep in memory, how often they call their kernel, what the host reads."""

import numpy as np
import pytest
import torch
from qwen_by_hand import NAME as QWEN
from qwen_checkpoints import MULTIPLE
from small_families import SMALL_FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.models import load_encoder
from tango_core.types import VideoFrames
from tests.gpu.random_weights import write_random_checkpoint

NUM_PATCHES = 27 * 27
TANGO = frozenset({"attention", "keys"})


class Seen(TorchDispatchMode):
    """Every operation on tensors, with the shapes of what it gives."""

    def __init__(self):
        super().__init__()
        self.shapes = []
        self.kernels = 0
        self.moved_to_host = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self.kernels += "scaled_dot_product" in name
        if "_local_scalar_dense" in name:
            self.moved_to_host.append(name)
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, torch.Tensor):
                self.shapes.append(tuple(one.shape))
        return result


@pytest.fixture(scope="module")
def onevision(tmp_path_factory):
    """The geometry of SigLIP so400m with 1 head and 2 blocks."""
    path = tmp_path_factory.mktemp("onevision")
    write_random_checkpoint("llava-onevision-0.5b", path, shrink=16)
    return str(path)


def frames_of(count, height=384, width=384):
    pixels = np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    return VideoFrames(pixels, np.arange(count, dtype=np.float64))


@pytest.fixture
def stock_attention(monkeypatch):
    """PyTorch's attention on every CPU (`onednn`)."""
    monkeypatch.setattr("tango_core.models.onednn._LEAST_ROWS", 10**9)


@pytest.mark.usefixtures("stock_attention")
def test_tokens_alone_never_need_the_attention_of_all_patches_to_all(onevision):
    encoder = load_encoder("llava-onevision-7b", onevision, encode_batch=6)
    with Seen() as seen:
        encoder.encode(frames_of(6))
    assert seen.kernels == len(encoder.model.vision_tower.encoder.layers)
    assert not [shape for shape in seen.shapes if shape[-2:] == (NUM_PATCHES, NUM_PATCHES)]


@pytest.mark.usefixtures("stock_attention")
def test_received_attention_is_computed_a_few_frames_at_a_time(onevision, monkeypatch):
    bound = 4 * NUM_PATCHES**2
    monkeypatch.setattr("tango_core.models.towers.encoder._PROBABILITIES_AT_ONCE", bound)
    encoder = load_encoder("llava-onevision-7b", onevision, encode_batch=6)
    with Seen() as seen:
        encoder.encode(frames_of(6), TANGO)
    whole = [shape for shape in seen.shapes if shape[-2:] == (NUM_PATCHES, NUM_PATCHES)]
    assert whole
    assert max(shape[0] for shape in whole) <= 4


@pytest.mark.parametrize("name", SMALL_FAMILIES)
def test_no_number_is_read_by_the_host_while_a_clip_is_encoded(small_paths, name):
    encoder, frames = load_encoder(name, small_paths[name]), SMALL_FAMILIES[name].frames(4)
    encoder.encode(frames, TANGO)  # the first clip of a shape finds its windows on the host
    with Seen() as seen:
        encoder.encode(frames, TANGO)
    assert not seen.moved_to_host


@pytest.mark.usefixtures("stock_attention")
@pytest.mark.parametrize(
    ("grid", "sizes"),
    [((4, 4), 1), ((8, 12), 1), ((8, 9), 2), ((5, 9), 3), ((6, 9), 4), ((3, 2), 1)],
)
def test_windows_of_a_size_share_a_call_of_the_kernel(small_paths, grid, sizes):
    encoder = load_encoder(QWEN, small_paths[QWEN], encode_batch=6)
    frames = frames_of(6, grid[0] * MULTIPLE, grid[1] * MULTIPLE)
    with Seen() as seen:
        encoder.encode(frames)
    whole = len(encoder.model.fullatt_block_indexes)
    assert seen.kernels == whole + sizes * (len(encoder.model.blocks) - whole)
