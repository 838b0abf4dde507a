"""A step of decoding as a graph: where it is recorded, and what becomes of one that fails."""

from __future__ import annotations

import logging
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tango_core.models.language.layer_loop import Recorder

DEVICE = torch.device("cuda:1")


class FakeCuda:
    """What PyTorch does around a recording: streams belong to the device that is current."""

    def __init__(self, monkeypatch):
        self.current, self.stream, self.recorded, self.made = 0, "default", [], []
        self.fails_at_the_end = False
        for name in ("device", "current_stream", "set_stream", "Stream", "graph", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device.index
        yield
        self.current = before

    def current_stream(self):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream

    def Stream(self):  # noqa: N802
        self.made.append(self.current)
        return f"stream {len(self.made)} of {self.current}"

    def CUDAGraph(self):  # noqa: N802
        return SimpleNamespace()

    @contextmanager
    def graph(self, graph, stream, capture_error_mode):
        """As PyTorch's, which leaves the stream only if the recording ends well."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.recorded.append((self.current, stream, capture_error_mode))
            if self.fails_at_the_end:
                raise RuntimeError(
                    "CUDA error: operation failed due to a previous error\nand so on"
                )
            self.stream = before


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def test_all_of_a_device_are_recorded_there_and_on_one_stream(cuda):
    recorder = Recorder(DEVICE)
    assert recorder.record(lambda: None) is not None
    assert recorder.record(lambda: None) is not None
    # Other threads may allocate meanwhile.
    assert cuda.recorded == [(1, "stream 1 of 1", "thread_local")] * 2
    assert (cuda.current, cuda.stream) == (0, "default")


def test_what_cannot_be_recorded_leaves_the_stream_and_its_memory(cuda, caplog):
    held = []

    def work():
        tensor = torch.zeros(9)
        held.append(weakref.ref(tensor))
        cuda.fails_at_the_end = True
        raise torch.OutOfMemoryError("CUDA out of memory")

    with caplog.at_level(logging.WARNING):
        assert Recorder(DEVICE).record(work) is None
    assert (cuda.current, cuda.stream) == (0, "default")
    assert held[0]() is None
    (said,) = caplog.messages
    assert said.startswith("decoding continues without a CUDA graph: CUDA error")
    assert "\n" not in said


def test_other_errors_are_not_hidden(cuda):
    def work():
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        Recorder(DEVICE).record(work)
