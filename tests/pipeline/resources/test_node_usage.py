"""Usage of a node and of its GPUs."""

from __future__ import annotations

import socket

import pytest

from pipeline.resources import node_usage
from pipeline.resources.node_usage import Reading, UsageBoard, UsageReader

HOST = socket.gethostname()


def test_readings_of_this_node():
    """CPU usage is a difference, which the test's own work keeps above zero."""
    reader = UsageReader(["0"])
    while len(found := {one.quantity: one for one in reader.read()}) < 2:
        sum(range(1_000_000))
    assert found.keys() == {"cpu", "memory"}
    assert all((one.host, one.gpu) == (HOST, "") for one in found.values())
    assert all(0 < one.percent <= 100 for one in found.values())


def test_a_process_reads_every_few_seconds():
    reader = UsageReader()
    assert reader.due()
    assert reader.due() == []


def test_the_last_reading_counts_until_it_is_old(monkeypatch):
    board = UsageBoard()
    old, new = (Reading("far", "0", "gpu", percent) for percent in (10.0, 20.0))
    other = Reading("far", "1", "gpu", 30.0)
    board.add_readings([old, other])
    board.add_readings([new])
    assert board.readings() == [new, other]
    monkeypatch.setattr(node_usage, "_FORGOTTEN_S", -1.0)
    assert board.readings() == []


@pytest.mark.gpu
def test_a_gpu_in_use_is_read():
    import torch

    held = torch.zeros(2**28, device="cuda")
    readings = {reading.quantity: reading for reading in UsageReader(["7"]).read()}
    assert readings["gpu_memory"].gpu == readings["gpu"].gpu == "7"
    assert 0 < readings["gpu_memory"].percent <= 100
    del held
