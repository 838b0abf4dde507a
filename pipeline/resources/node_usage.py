"""CPU, memory and GPU usage of the nodes of a job, in percent.

A worker imports this module, so it imports neither torch nor Ray.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

EVERY_S = 5.0
"""Between two reports of one process."""
_FORGOTTEN_S = 60.0
"""Readings older than this are dropped; their node or GPU is no longer used."""


class Reading(NamedTuple):
    """One number of one node.

    Attributes:
        host: Name of the node.
        gpu: Ray's id of the GPU; empty for the node itself.
        quantity: `cpu`, `memory`, `gpu` or `gpu_memory`.
        percent: Usage by all processes.
    """

    host: str
    gpu: str
    quantity: str
    percent: float


class UsageReader:
    """Reads the node of this process, and the GPUs on which this process has tensors.

    Args:
        gpus: Ray's ids of the GPUs that this process sees, in the order of torch.
    """

    def __init__(self, gpus: Sequence[str] = ()) -> None:
        self._host, self._gpus = socket.gethostname(), gpus
        self._times = _cpu_times()
        self._read_at = float("-inf")

    def due(self) -> list[Reading]:
        """Take readings; empty if the last ones were taken less than `EVERY_S` ago."""
        now = time.monotonic()
        if now - self._read_at < EVERY_S:
            return []
        self._read_at = now
        return self.read()

    def read(self) -> list[Reading]:
        """Usage of the node since the last call, and current usage of the GPUs."""
        return [*self._node(), *self._gpu_readings(sys.modules.get("torch"))]

    def _node(self) -> Iterator[Reading]:
        """Readings of CPUs and memory."""
        (total, idle), now = self._times, _cpu_times()
        if (passed := now[0] - total) > 0:
            self._times = now
            yield self._reading("cpu", 1 - (now[1] - idle) / passed)
        yield self._reading("memory", psutil.virtual_memory().percent / 100)

    def _gpu_readings(self, torch: Any) -> Iterator[Reading]:
        """Readings of the GPUs used by this process; querying others would allocate memory."""
        if torch is None or not torch.cuda.is_initialized():
            return
        for index, gpu in enumerate(self._gpus):
            # No reading without nvidia-ml-py, for a partition of a GPU, or for a lost GPU.
            with suppress(Exception):
                if torch.cuda.memory_reserved(index):
                    free, total = torch.cuda.mem_get_info(index)
                    yield self._reading("gpu_memory", 1 - free / total, gpu)
                    yield self._reading("gpu", torch.cuda.utilization(index) / 100, gpu)

    def _reading(self, quantity: str, share: float, gpu: str = "") -> Reading:
        return Reading(self._host, gpu, quantity, round(100 * min(1.0, max(0.0, share)), 1))


def _cpu_times() -> tuple[float, float]:
    """Total and idle CPU time of this node in seconds."""
    times = psutil.cpu_times()._asdict()
    # On Linux, the time of guests is part of the user time.
    total = sum(times.values()) - times.get("guest", 0) - times.get("guest_nice", 0)
    return total, times["idle"] + times.get("iowait", 0)


class UsageBoard:
    """The last readings of all nodes; used by one thread."""

    def __init__(self) -> None:
        self._readings: dict[tuple[str, str, str], tuple[float, Reading]] = {}

    def add_readings(self, readings: Sequence[Reading]) -> None:
        """Add the readings of one worker."""
        now = time.monotonic()
        self._readings |= {reading[:3]: (now, reading) for reading in readings}

    def readings(self) -> list[Reading]:
        """Latest reading of every quantity of every node and GPU, without old ones."""
        oldest = time.monotonic() - _FORGOTTEN_S
        self._readings = {key: one for key, one in self._readings.items() if one[0] >= oldest}
        return [reading for _, reading in self._readings.values()]
