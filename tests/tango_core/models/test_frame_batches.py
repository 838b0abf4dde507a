"""How many frames go through a tower at once, and what happens when the device has no room."""

import logging

import pytest
import torch

from tango_core.models.towers import frame_batches
from tango_core.models.towers.frame_batches import FrameBatches, upload_clip

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
    return batches.run(rows, tower, **{"row_bytes": 100, **options})


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
    ("free", "expected"), [(10**6, 10), (1999, 8), (1000, 4), (401, 2), (1, 1)]
)
def test_auto_takes_what_fits_into_half_of_the_free_memory(monkeypatch, free, expected):
    monkeypatch.setattr(frame_batches, "free_bytes", lambda device: free)
    tower = Tower()
    run(FrameBatches("auto", CUDA), tower)
    assert tower.batches[0] == expected


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
    assert frame_batches.free_bytes(CUDA) == expected


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
    with pytest.raises(torch.OutOfMemoryError, match="no room to encode 1 frame") as raised:
        run(FrameBatches(4, CPU), Tower(room=0, error=error))
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


def test_what_was_encoded_before_the_device_was_full_is_kept():
    batches, tower = FrameBatches(4, CPU), Tower()
    calls = []

    def fills_up(rows):
        calls.append(rows[:, 0].tolist())
        tower.room = 4 if len(calls) == 1 else 2
        return tower(rows)

    assert torch.equal(run(batches, fills_up)["tokens"], ROWS * 2)
    assert calls[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5]]


def test_a_single_frame_without_room_is_an_error_in_one_line():
    with pytest.raises(torch.OutOfMemoryError, match="no room to encode 1 frame") as error:
        run(FrameBatches(4, CPU), Tower(room=0))
    assert "\n" not in str(error.value)
    assert "compress pool" in str(error.value)
    with pytest.raises(torch.OutOfMemoryError, match="no room to encode 2 frame"):
        run(FrameBatches(4, CPU), Tower(room=0), frames_per_row=2)


def test_other_errors_are_not_taken_for_a_lack_of_room():
    def breaks(rows):
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        run(FrameBatches(4, CPU), breaks)
