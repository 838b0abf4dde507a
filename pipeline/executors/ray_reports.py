"""Metrics that workers on Ray report to the driver and to Prometheus.

Every worker imports this module, so it must not import torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from pipeline import metrics
from pipeline.clips import Pools
from pipeline.resources.pools import ActorPool
from pipeline.rows import Result
from pipeline.runtime.clock import Ticker

if TYPE_CHECKING:
    from pipeline.plan import Plan

logger = logging.getLogger(__name__)

_COPY_EVERY_S = 1.0
# The last reports are sent before the results, but may arrive later.
_LAST_LOOKS, _LAST_LOOK_EVERY_S = 25, 0.2
_REPORT_EVERY_S = 1.0


@cache
def instrument(metric: metrics.Metric) -> Any:
    """Ray's instrument of a metric; Ray allows only one per process."""
    if metric.kind == "histogram":
        return ray_metrics.Histogram(
            metric.name, metric.description, list(metric.boundaries), metric.tags
        )
    kind = ray_metrics.Counter if metric.kind == "counter" else ray_metrics.Gauge
    return kind(metric.name, metric.description, metric.tags)


class WorkerReport(metrics.StageBoard):
    """Report of a stage in a worker: to Prometheus at once, to the driver every second.

    Args:
        board: Actor with the methods of `StageBoard`; `None` for Prometheus only.
    """

    def __init__(self, board: Any) -> None:
        super().__init__()
        self._board = board
        self._sent = 0.0

    def started(self, stage: str) -> None:
        """See `StageBoard`."""
        instrument(metrics.STARTED).inc(1, {"stage": stage})
        super().started(stage)

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """See `StageBoard`."""
        instrument(metrics.FINISHED).inc(1, {"stage": stage, "status": status})
        instrument(metrics.SECONDS).observe(seconds, {"stage": stage})
        if seconds > 0:  # Ray refuses a counter's step of 0
            instrument(metrics.BUSY).inc(seconds, {"stage": stage})
        super().finished(stage, seconds, status)

    def add(self, counts: Mapping[str, metrics.StageCount]) -> None:
        """Add counts, and send them every second."""
        super().add(counts)
        if time.monotonic() - self._sent > _REPORT_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Send the pending counts without waiting for the reply."""
        self._sent = time.monotonic()
        if (counts := self.show({})) and self._board is not None:
            self._board.add.remote(counts)


class DriverReport:
    """The driver's metrics for Prometheus: sizes of the job, and its results."""

    def __init__(self, plan: Plan, board: metrics.JobBoard) -> None:
        board.plan(plan)
        self._board = board
        self._num_caches = len(plan.caches)
        self.sizes()

    def sizes(self) -> None:
        """Set the gauges of the job's size; Ray drops a gauge that is not set again within 20 s."""
        for stage, expected in self._board.expected.items():
            instrument(metrics.EXPECTED).set(expected, {"stage": stage})
            instrument(metrics.SLOTS).set(self._board.slots.get(stage, 1), {"stage": stage})

    def result(self, row: Result) -> None:
        """Count one finished clip."""
        if row.status == "ok":
            found = self._num_caches - row.num_misses
            _count(metrics.TOKEN_SETS, "source", {"cache": found, "computed": row.num_computed})
        for answer in row.answers:
            instrument(metrics.ANSWERS).inc(1, {"status": answer.status})
            tokens = {"total": answer.tokens_total, "kept": answer.tokens_kept}
            tokens |= {"prompt": answer.prompt_tokens, "new": answer.new_tokens}
            _count(metrics.TOKENS, "kind", tokens)


def _count(metric: metrics.Metric, tag: str, values: Mapping[str, float | None]) -> None:
    """Add to a counter, which Ray refuses for 0."""
    for value, number in values.items():
        if number:
            instrument(metric).inc(number, {tag: value})


def slots_of(pools: Pools, stages: list[str]) -> dict[str, float]:
    """Number of clips that each stage can process at once on the connected cluster."""
    wanted = {name: getattr(pools, name) for name in stages}
    free = ray.cluster_resources().get("CPU", 1.0)
    for pool in wanted.values():
        free -= pool.most * pool.num_cpus if isinstance(pool, ActorPool) else 0
    return {
        name: float(pool.most) if isinstance(pool, ActorPool) else max(1.0, free // pool.num_cpus)
        for name, pool in wanted.items()
    }


@contextmanager
def mirrored(actor: Any, board: metrics.JobBoard, report: DriverReport) -> Iterator[None]:
    """While active, copy the counts of the actor to the driver's board every second.

    The gauges of the job's size are set again as well.
    """

    def copy() -> None:
        try:
            board.show(ray.get(actor.counts.remote(), timeout=5))
        except RayError as error:  # the last counts stay
            logger.debug("no reports: %s", error)
        report.sizes()

    copies = Ticker(copy, _COPY_EVERY_S, "tango-board")
    copies.start()
    try:
        yield
        for _ in range(_LAST_LOOKS):
            copy()
            if all(one.count.finished >= one.expected for one in board.states().values()):
                break
            time.sleep(_LAST_LOOK_EVERY_S)
    finally:
        copies.stop()
