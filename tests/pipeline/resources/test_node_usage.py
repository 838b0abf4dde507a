"""How busy a node is, as its kernel and its GPU say."""

from __future__ import annotations

import socket

import pytest

from pipeline.resources import node_usage
from pipeline.resources.node_usage import Reading, UsageBoard, UsageReader

HOST = socket.gethostname()
MEMORY = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\nHugePages_Total:  0\n"


def kernel(proc, busy, idle):
    """What Linux says after so many ticks, a tenth of the idle ones in wait for a disk."""
    times = f"{busy} 0 0 {idle - idle // 10} {idle // 10} 0 0 0 9 9"
    (proc / "stat").write_text(f"cpu  {times}\ncpu0 1\n")
    (proc / "meminfo").write_text(MEMORY)


def test_cpus_are_read_as_a_difference(tmp_path):
    kernel(tmp_path, busy=500, idle=500)
    reader = UsageReader(proc=tmp_path)
    memory = Reading(HOST, "", "memory", 60.0)
    assert reader.read() == [memory], "no time has passed"
    kernel(tmp_path, busy=525, idle=575)
    assert reader.read() == [Reading(HOST, "", "cpu", 25.0), memory]
    kernel(tmp_path, busy=625, idle=575)
    assert reader.read() == [Reading(HOST, "", "cpu", 100.0), memory]


def test_a_process_reads_every_few_seconds(tmp_path):
    kernel(tmp_path, 1, 1)
    reader = UsageReader(proc=tmp_path)
    assert reader.due()
    assert reader.due() == []


def test_a_system_that_says_nothing_gives_no_readings(tmp_path):
    assert UsageReader(["0"], tmp_path).read() == []


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
