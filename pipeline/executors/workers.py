"""Run stages on Arrow blocks in Ray's workers, and report what they do to the driver.

The reports also go to Prometheus. Every worker imports this module, so it must not import torch,
which decode workers do not need.

Ray restarts dead actors and repeats their work without limit. For a clip that crashes the process
every time (native crash, out-of-memory killer), a job would never end. So every stage that holds a
model reports to a ledger before and after it processes a clip.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util import metrics as ray_metrics

from pipeline import metrics
from pipeline.clips import Clip, Pools, Stage
from pipeline.errors import DeviceError
from pipeline.resources.pools import ActorPool, room_for
from pipeline.rows import Result, packed, unpacked
from pipeline.runtime import stopping
from pipeline.runtime.clock import Ticker

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Number of attempts at a clip that kills its worker."""
LOST_GPU = 70
"""Exit code of a worker that can no longer use its GPU."""
_COPY_EVERY_S = 1.0
# The last reports are sent before the results, but may arrive later.
_LAST_LOOKS, _LAST_LOOK_EVERY_S = 25, 0.2
_REPORT_EVERY_S = 1.0


class AttemptLedger:
    """Counts the attempts at clips; lives with the driver and outlives the workers."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def begin(self, key: str) -> int:
        """Count an attempt at `key`; returns the number of attempts including this one."""
        self._begun[key] += 1
        return self._begun[key]

    def end(self, key: str) -> None:
        """Record that an attempt has returned, with or without success."""
        self._begun.pop(key, None)
        self._reasons.pop(key, None)

    def note(self, key: str, reason: str) -> None:
        """Record why the process ends during this attempt."""
        self._reasons[key] = reason

    def why(self, key: str) -> str | None:
        """The last reason recorded with `note`; `None` for none."""
        return self._reasons.get(key)


class JobLedger(AttemptLedger, metrics.StageBoard):
    """What the workers of a job report to their driver, in one actor, which starts in a second.

    Its process imports this module, so it imports little: neither torch nor Ray Data.
    """


class BoundedAttempts:
    """Runs a stage on rows, and gives up a clip that killed the process too often.

    If a process died while it processed several clips, the cause is unknown, so each of these clips
    is processed alone in further attempts.

    Args:
        stage: Function on a stream of clips (`metrics.stream_of`); passes failed clips on.
        failure: Status of clips that are given up.
        ledger: Ledger shared by all workers of the stage.
        where: Host and GPU, for messages.
    """

    def __init__(
        self, stage: metrics.Stream, failure: str, ledger: AttemptLedger, where: str = ""
    ) -> None:
        self._where = where
        self._stage = stage
        self._failure = failure
        self._ledger = ledger

    def __call__(self, rows: Iterable[Clip]) -> Iterator[metrics.Record]:
        """Make one attempt at every clip.

        Raises:
            DeviceError: If the process must end; the ledger knows why.
        """
        waiting = iter(rows)
        suspects: list[Clip] = []

        def unsuspected() -> Iterator[Clip]:
            for row in waiting:
                attempts = self._ledger.begin(self._key(row))
                if attempts > 1:
                    suspects.append(row if attempts <= MAX_ATTEMPTS else self._given_up(row))
                    return
                yield row

        yield from self._attempt(unsuspected())
        while suspects:
            yield from self._attempt([suspects.pop()])
            yield from self._attempt(unsuspected())

    def _given_up(self, row: Clip) -> Clip:
        """The clip, failed because it killed the process too often."""
        reason = f"the worker process died {MAX_ATTEMPTS} times on this clip"
        if why := self._ledger.why(self._key(row)):
            reason += f"; the last time because of {why}"
        return row.failed(self._failure, reason)

    def _attempt(self, rows: Iterable[Clip]) -> Iterator[metrics.Record]:
        """Run rows through the stage, and end the attempts of those that return."""
        inside: dict[str, None] = {}

        def taken() -> Iterator[Clip]:
            for row in rows:
                inside[self._key(row)] = None
                yield row

        try:
            for done in self._stage(taken()):
                key = self._key(done)
                self._ledger.end(key)
                inside.pop(key, None)
                yield done
        except DeviceError as error:
            for key in inside:
                self._ledger.note(key, f"{error} ({self._where})" if self._where else str(error))
            raise

    def _key(self, row: metrics.Record) -> str:
        """Ledger key of a clip in this stage."""
        return "|".join((self._failure, *row.name))


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
        PoolError: If the vision encoder or language model does not fit into GPU memory.
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
