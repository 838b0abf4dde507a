"""What the towers keep in memory, how often they call their kernel, what the host reads."""

import logging

import numpy as np
import pytest
import torch
from qwen_by_hand import NAME as QWEN
from qwen_checkpoints import MULTIPLE
from small_families import SMALL_FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode

from tango_core.models import load_encoder, memory_faults
from tango_core.models.towers.encoder import FrameBatches, upload_clip
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
    monkeypatch.setattr("tango_core.models.kernels._LEAST_ROWS", 10**9)


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


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ROWS = torch.arange(10.0)[:, None]


class Tower:
    """Doubles rows; has room for some of them at once."""

    def __init__(self, room=10, error=None):
        self.room = room
        self.error = error or torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2 GiB.\nMore lines"
        )
        self.batches = []

    def __call__(self, rows):
        self.batches.append(len(rows))
        if len(rows) > self.room:
            raise self.error
        return {"tokens": rows * 2, "sums": rows.sum(dim=1)}


def run(batches, tower, rows=ROWS, **options):
    return batches.run(rows, tower, **options)


@pytest.mark.parametrize(
    ("setting", "seen"), [(1, [1] * 10), (3, [3, 3, 3, 1]), (10, [10]), (64, [10])]
)
def test_a_clip_is_cut_where_the_setting_says_and_put_together_again(setting, seen):
    tower = Tower()
    maps = run(FrameBatches(setting, CPU), tower)
    assert tower.batches == seen
    assert torch.equal(maps["tokens"], ROWS * 2)
    assert torch.equal(maps["sums"], ROWS[:, 0])


def test_pairs_of_frames_count_as_two_frames():
    tower = Tower()
    run(FrameBatches(6, CPU), tower, frames_per_row=2)
    assert tower.batches == [3, 3, 3, 1]
    smaller_than_a_pair = Tower()
    run(FrameBatches(1, CPU), smaller_than_a_pair, frames_per_row=2)
    assert smaller_than_a_pair.batches == [1] * 10


@pytest.mark.parametrize(
    ("share", "free", "expected"),
    [(1.0, 60, 70), (0.5, 60, 30), (0.5, 5, 15), (0.1, 60, 0)],
)
def test_free_is_what_is_left_of_the_share_of_a_gpu(monkeypatch, share, free, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    assert memory_faults.free_bytes(CUDA) == expected


def test_a_device_without_room_gets_smaller_batches_and_they_stay(caplog):
    caplog.set_level(logging.WARNING)
    batches, tower = FrameBatches(10, CPU), Tower(room=3)
    maps = run(batches, tower)
    assert tower.batches == [10, 5, 2, 2, 2, 2, 2]
    assert torch.equal(maps["tokens"], ROWS * 2)
    assert "no room for 10 frames at once; going on with 5 " in caplog.text
    assert "model.encode_batch" in caplog.text
    again = Tower(room=3)
    run(batches, again)
    assert again.batches == [2] * 5


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_lack_of_memory_in_other_words_makes_batches_smaller_too(error):
    batches = FrameBatches(10, CPU)
    assert torch.equal(run(batches, Tower(room=2, error=error))["tokens"], ROWS * 2)
    assert batches.shrunk_to == 2
    words = r"no room to encode 2 frame.*compress pool"
    with pytest.raises(torch.OutOfMemoryError, match=words) as raised:
        run(FrameBatches(4, CPU), Tower(room=0, error=error), frames_per_row=2)
    assert "\n" not in str(raised.value)


def test_frames_and_times_arrive_as_they_were():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 5, 7, 3), generator=generator, dtype=torch.uint8).numpy()
    pixels.flags.writeable = False
    times = torch.tensor([0.1, 0.5, 1 / 3], dtype=torch.float64).numpy()
    on_device, timestamps = upload_clip(pixels[::-1], times, CPU)
    assert torch.equal(on_device, torch.tensor(pixels[::-1].copy()))
    assert torch.equal(timestamps, torch.tensor(times))
    assert timestamps.untyped_storage().nbytes() == 3 * 8


def test_other_errors_are_not_taken_for_a_lack_of_room():
    def breaks(rows):
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        run(FrameBatches(4, CPU), breaks)
