"""A cluster's scheduler: real stages in workers that die, come back and finish in any order.

It does for a plan what `pipeline.executors.ray_data` has Ray Data do: a worker that died is
replaced and what it was at is given to another one, without limit; the ledger bounds that. Workers
are sent their caches and rows as Ray sends them, pickled and through Arrow.
"""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pipeline.clips import Clip, Stage, stages_of
from pipeline.errors import WorkerError
from pipeline.executors.attempts import AttemptLedger, BoundedAttempts
from pipeline.metrics import Stream, stream_of
from pipeline.plan import Plan
from pipeline.rows import Result, clips_in, filled, packed, unpacked
from pipeline.settings import Settings
from tests.chaos.simulator.world import Killed, Process

if TYPE_CHECKING:
    from tests.chaos.simulator.running import Running

WORKERS = {"decode": 2, "compress": 1, "answer": 2}


@dataclass(eq=False)
class Worker:
    """One worker of a stage.

    Attributes:
        process: Of the world.
        stage: What it does.
        row: What it is at.
    """

    stage: Stage
    process: Process | None = None
    row: Clip | None = None


class Cluster:
    """Runs plans for one driver."""

    def __init__(self, running: Running, driver: Process) -> None:
        self.running, self.driver = running, driver
        self.ledger = AttemptLedger()
        running.ledgers.append(self.ledger)
        self._draw = random.Random(running.schedule.order)
        self._closed = False
        self._spawned = 0

    def stream(self, plan: Plan, settings: Settings) -> Iterator[Result]:
        """See `pipeline.executors.ray_data.stream`."""
        if plan.clips.num_rows == 0:
            return
        for cache in plan.caches.values():
            cache.prepare()
        stages = stages_of(plan)
        self.queues: dict[str, list[Clip]] = {stage.name: [] for stage in stages}
        self.results: deque[Clip | Result] = deque()
        self._closed = False
        rows = list(clips_in(plan.clips))
        for row in rows:
            first = next((one for one in stages if one.takes(row)), None)
            if first is None:
                self.results.append(row)
            else:
                self.queues[first.name].append(row)
        workers = [
            self._start(Worker(stage), plan, settings)
            for stage in stages
            for _ in range(WORKERS[stage.name])
        ]
        given = 0
        try:
            while given < len(rows):
                self.driver.wait_for(lambda: self.results or any(map(_has_ended, workers)))
                for worker in filter(_has_ended, workers):
                    assert worker.process is not None
                    error = worker.process.error
                    if error is not None and not isinstance(error, Killed):
                        raise WorkerError(f"{type(error).__name__}: {error}") from error
                    if worker.row is not None:
                        self.queues[worker.stage.name].insert(0, worker.row)
                    self._start(worker, plan, settings)
                while self.results:
                    given += 1
                    row = self.results.popleft()
                    yield row if isinstance(row, Result) else filled(row)
        finally:
            self._closed = True
            if not self.driver.dead:
                for worker in workers:
                    assert worker.process is not None
                    self.running.world.kill(worker.process)

    def _start(self, worker: Worker, plan: Plan, settings: Settings) -> Worker:
        """A worker, new or again."""
        self._spawned += 1
        machine = 0 if self.running.schedule.world == "disk" else self._spawned % 2
        program = partial(self._work, worker=worker, plan=plan, settings=settings)
        worker.row = None
        worker.process = self.running.world.spawn(
            f"{worker.stage.name}-{self._spawned}", machine, program, self.driver
        )
        return worker

    def _work(self, process: Process, *, worker: Worker, plan: Plan, settings: Settings) -> None:
        """What a worker does until its driver needs it no more."""
        stage, queue = worker.stage, self.queues[worker.stage.name]
        caches = pickle.loads(pickle.dumps(dict(plan.caches)))
        started = stream_of(stage.start(replace(plan, caches=caches), settings))

        def looked_at(rows: Iterable[Clip]) -> Iterator[Clip]:
            for row in rows:
                poisoned = self.running.poisoned.get(self.driver.pid) == row.video_id
                if poisoned and row.status == "ok":
                    self.running.world.kill(process)
                    process.raise_if_dead()
                yield row

        run: Stream = started
        if _is_actor(stage):
            run = BoundedAttempts(lambda rows: started(looked_at(rows)), stage.failure, self.ledger)
        while True:
            process.wait_for(lambda: queue or self._closed or self.driver.ended)
            if self._closed or self.driver.ended:
                return
            worker.row = queue.pop(self._draw.randrange(len(queue)))
            process.step(f"{stage.name} takes {worker.row.video_id}")
            done: Clip | Result = next(unpacked(packed(run([worker.row]))))
            process.step(f"{stage.name} gives {worker.row.video_id}")
            worker.row = None
            if self._closed or self.driver.ended:
                return
            later = [one.name for one in stages_of(plan)]
            after = later[later.index(stage.name) + 1 :]
            if after:
                assert isinstance(done, Clip)
                self.queues[after[0]].append(done)
            else:
                self.results.append(done)


def _is_actor(stage: Stage) -> bool:
    """Whether a stage holds a model."""
    return isinstance(stage.load(), type)


def _has_ended(worker: Worker) -> bool:
    """Whether a worker's process is gone."""
    return worker.process is not None and worker.process.ended
