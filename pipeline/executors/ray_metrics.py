"""The metrics of the stages as Ray's instruments, and what a worker reports with them.

A worker imports this module, so it imports little.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import ray
from ray.util import metrics as ray_metrics

from pipeline.metrics import BUSY, FINISHED, SECONDS, STARTED, Metric, StageBoard
from pipeline.resources.node_usage import UsageReader

_REPORT_EVERY_S = 1.0


@cache
def instrument(metric: Metric) -> Any:
    """Ray's instrument of a metric; one per process, as Ray wants it."""
    if metric.kind == "histogram":
        return ray_metrics.Histogram(
            metric.name, metric.description, list(metric.boundaries), metric.tags
        )
    kind = ray_metrics.Counter if metric.kind == "counter" else ray_metrics.Gauge
    return kind(metric.name, metric.description, metric.tags)


@cache
def usage_reader() -> UsageReader:
    """The only one of this process: CPUs are read as a difference."""
    return UsageReader([str(gpu) for gpu in ray.get_gpu_ids()])


class WorkerReport:
    """Where a stage reports inside a worker: to Prometheus at once, to the driver now and then.

    Args:
        board: Actor with the methods of `StageBoard` and `UsageBoard`; `None` where no driver asks.
        usage: Reads this node.
    """

    def __init__(self, board: Any, usage: UsageReader) -> None:
        self._board, self._usage = board, usage
        self._pending = StageBoard()
        self._sent = 0.0

    def started(self, stage: str) -> None:
        """See `pipeline.metrics.StageReport`."""
        instrument(STARTED).inc(1, {"stage": stage})
        self._pending.started(stage)
        self._send_now_and_then()

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """See `pipeline.metrics.StageReport`."""
        instrument(FINISHED).inc(1, {"stage": stage, "status": status})
        instrument(SECONDS).observe(seconds, {"stage": stage})
        if seconds > 0:  # Ray refuses a counter's step of 0
            instrument(BUSY).inc(seconds, {"stage": stage})
        self._pending.finished(stage, seconds, status)
        self._send_now_and_then()

    def flush(self) -> None:
        """Send what is pending; nobody waits for the answer."""
        self._sent = time.monotonic()
        if (counts := self._pending.take()) and self._board is not None:
            self._board.add.remote(counts)

    def usage(self) -> None:
        """Send how busy this node is, if that is due; nobody waits for the answer."""
        if self._board is not None and (readings := self._usage.due()):
            self._board.add_readings.remote(readings)

    def _send_now_and_then(self) -> None:
        if time.monotonic() - self._sent > _REPORT_EVERY_S:
            self.flush()
