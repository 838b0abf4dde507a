"""Run stages on Arrow blocks in Ray's workers, and report what they do to the driver.

The reports also go to Prometheus. Every worker imports this module, so it must not import torch,
which decode workers do not need.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from pipeline import metrics
from pipeline.clips import Pools, Stage
from pipeline.errors import DeviceError
from pipeline.executors.attempts import AttemptLedger, BoundedAttempts
from pipeline.resources.pools import ActorPool, room_for
from pipeline.rows import Result, packed, unpacked
from pipeline.runtime import stopping
from pipeline.runtime.clock import Ticker

logger = logging.getLogger(__name__)

LOST_GPU = 70
"""Exit code of a worker that can no longer use its GPU."""
_COPY_EVERY_S = 1.0
# The last reports are sent before the results, but may arrive later.
_LAST_LOOKS, _LAST_LOOK_EVERY_S = 25, 0.2
_REPORT_EVERY_S = 1.0


def task(stage: Stage, ledger: Any = None) -> Callable[..., pa.Table]:
    """Convert a stage that is a function to a function on Arrow blocks.

    Args:
        stage: The stage.
        ledger: Handle of the actor that counts clips; `None` for no reports.
    """
    function = stage.load()

    def on_block(block: pa.Table, **arguments: Any) -> pa.Table:
        report = WorkerReport(ledger)
        run = metrics.stream_of(partial(function, **arguments))
        done = packed(metrics.Metered(run, stage.name, report)(unpacked(block)))
        report.flush()
        return done

    on_block.__name__ = function.__name__  # shown in Ray's dashboard
    return on_block


class StageActor:
    """Runs a stage that is a class on Arrow blocks, with a limit on the attempts at one clip.

    Args:
        stage: The stage.
        arguments: Arguments of its class.
        ledger: Handle of the actor that counts attempts and clips.
        pool: Pool of the actor.

    Raises:
        PoolError: If its half of the model does not fit into the GPU's memory.
    """

    def __init__(
        self, stage: Stage, arguments: dict[str, Any], ledger: Any, pool: ActorPool
    ) -> None:
        with room_for(stage.name, pool, arguments.get("model")):
            run = metrics.stream_of(stage.load()(**arguments))
        gpus = ", ".join(map(str, ray.get_gpu_ids()))
        where = f"on {socket.gethostname()}" + (f", GPU {gpus}" if gpus else "")
        attempts = cast("AttemptLedger", _RemoteLedger(ledger))
        self._report = WorkerReport(ledger)
        bounded = BoundedAttempts(run, stage.failure, attempts, where)
        self._run = metrics.Metered(bounded, stage.name, self._report)

    def __call__(self, block: pa.Table) -> pa.Table:
        """Run the stage on the clips of a block.

        A process whose GPU is unusable exits: Ray starts another one and repeats the block there,
        and the ledger limits how often. An exception would end the whole job instead.
        """
        try:
            done = packed(self._run(unpacked(block)))
        except DeviceError:
            stopping.leave(LOST_GPU)  # a normal exit would wait for the GPU
        self._report.flush()
        return done


class _RemoteLedger:
    """Calls an `AttemptLedger` in a Ray actor.

    It waits for every call, so that a crash on the next clip is not counted for this one as well.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: ray.get(getattr(self._actor, name).remote(*arguments))


@cache
def instrument(metric: metrics.Metric) -> Any:
    """Ray's instrument of a metric; Ray allows only one per process."""
    if metric.kind == "histogram":
        return ray_metrics.Histogram(
            metric.name, metric.description, list(metric.boundaries), metric.tags
        )
    kind = ray_metrics.Counter if metric.kind == "counter" else ray_metrics.Gauge
    return kind(metric.name, metric.description, metric.tags)


def _count(metric: metrics.Metric, number: float | None, **tags: str) -> None:
    """Add to a counter, which Ray refuses for 0."""
    if number:
        instrument(metric).inc(number, tags)


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
        _count(metrics.STARTED, 1, stage=stage)
        super().started(stage)

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """See `StageBoard`."""
        _count(metrics.FINISHED, 1, stage=stage, status=status)
        instrument(metrics.SECONDS).observe(seconds, {"stage": stage})
        _count(metrics.BUSY, seconds, stage=stage)
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


def report_sizes(board: metrics.JobBoard) -> None:
    """Set the gauges of the job's size; Ray drops a gauge that is not set again within 20 s."""
    for stage, expected in board.expected.items():
        instrument(metrics.EXPECTED).set(expected, {"stage": stage})
        instrument(metrics.SLOTS).set(board.slots.get(stage, 1), {"stage": stage})


def report_result(row: Result, num_caches: int) -> None:
    """Count one finished clip of a job with so many caches."""
    if row.status == "ok":
        _count(metrics.TOKEN_SETS, num_caches - row.num_misses, source="cache")
        _count(metrics.TOKEN_SETS, row.num_computed, source="computed")
    for answer in row.answers:
        _count(metrics.ANSWERS, 1, status=answer.status)
        _count(metrics.TOKENS, answer.tokens_total, kind="total")
        _count(metrics.TOKENS, answer.tokens_kept, kind="kept")
        _count(metrics.TOKENS, answer.prompt_tokens, kind="prompt")
        _count(metrics.TOKENS, answer.new_tokens, kind="new")


def slots_of(pools: Pools, stages: list[str]) -> dict[str, float]:
    """Number of clips that each stage can process at once on the connected cluster."""
    wanted = {name: getattr(pools, name) for name in stages}
    actors = [pool for pool in wanted.values() if isinstance(pool, ActorPool)]
    free = ray.cluster_resources().get("CPU", 1.0) - sum(a.most * a.num_cpus for a in actors)
    return {
        name: float(pool.most) if pool in actors else max(1.0, free // pool.num_cpus)
        for name, pool in wanted.items()
    }


@contextmanager
def mirrored(actor: Any, board: metrics.JobBoard) -> Iterator[None]:
    """While active, copy the counts of the actor to the driver's board every second.

    The gauges of the job's size are set again as well.
    """

    def copy() -> None:
        try:
            board.show(ray.get(actor.counts.remote(), timeout=5))
        except RayError as error:  # the last counts stay
            logger.debug("no reports: %s", error)
        report_sizes(board)

    report_sizes(board)
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
