"""One simulated world at work: its stores, and what its processes do.

Real are the driver, the planner, the token cache and its shards, the answer writer, the seals, both
leases, the store's client with its repetitions, the stages and the summary. Simulated are the disk
and the store below them, the time, process ids and the decode child.
"""

from __future__ import annotations

import io
import json
import random
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from jobs.config.recipe import Job, parse_job
from jobs.results.facts import FACTS_FILE, JobFacts
from jobs.results.summary import reduce_runs, save_summary, summarize_reduced
from jobs.run.build import BuiltJob, build
from jobs.run.driver import JobResult, execute, versions
from jobs.run.locations import Locations
from jobs.run.run_dirs import find_run, new_run_dir, unfinished_run
from pipeline.cache.folders import CacheFolder, compact_cache, find_caches, plan_removals
from pipeline.metrics import JobBoard
from pipeline.rows import Result
from pipeline.run import run
from pipeline.runtime.background import done_ahead
from pipeline.runtime.stopping import Stopped
from pipeline.storage import Storage
from pipeline.storage.urls import Place, Url, place
from tests.chaos.simulator.model import MOST_CLIPS, InlineChild
from tests.chaos.simulator.schedules import Fault, Schedule, strike
from tests.chaos.simulator.stores import BucketState, DiskState, SimulatedDisk, SimulatedStore
from tests.chaos.simulator.world import START, ClockOf, Process, World

MODEL = "tests.chaos.simulator.model"
METHODS = ({"name": "full"}, {"name": "uniform", "retention": 0.5})
CONSOLE = Console(file=io.StringIO())


class Running:
    """A world with its stores."""

    now: ClassVar[Running]

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.world = World(schedule, self.strike)
        self.is_store = schedule.world == "store"
        self.disk, self.bucket = DiskState(), BucketState()
        self.state: DiskState | BucketState = self.bucket if self.is_store else self.disk
        self.output: Place = Url("s3://bucket/runs") if self.is_store else Path("/sim/runs")
        self.job, self.built, self.recipe = _job(schedule.clips)
        self.listing_faults: list[tuple[float, int]] = []
        self.decode_faults: list[str] = []
        self.intact: set[tuple[str, ...]] = set()
        self.finished: set[tuple[str, ...]] = set()
        self.rotten: dict[str, bytes] = {}
        self.reference: dict[tuple[str, ...], object] = {}
        self.num_encoded = 0
        self._names = random.Random(f"names {schedule.order}")

    def spawn(self, role: str, machine: int, **how: Any) -> Process:
        """Start one more process in one of `ROLES`."""
        name = f"{role}-{len(self.world.processes)}"
        return self.world.spawn(name, machine, partial(ROLES[role], self, **how))

    def storage(self, process: Process, where: str | Place) -> Storage:
        """A directory as a process sees it."""
        found = place(where)
        if isinstance(found, Url):
            return Storage(SimulatedStore(self.bucket, process, self.listed), found.path)
        return Storage(SimulatedDisk(self.disk, process, self.listed), str(found))

    def listed(self, path: str, found: list[Any]) -> list[Any]:
        """A listing as it arrives; only those of token caches may lag."""
        if not self.listing_faults or "/cache/" not in path:
            return found
        seconds, every = self.listing_faults.pop(0)
        if every:
            return [one for index, one in enumerate(found) if index % every]
        return [one for one in found if _written(one) <= self.world.time - seconds]

    def strike(self, fault: Fault, process: Process, what: str) -> None:
        """Let a fault happen, and note it if it did."""
        if fault.awaits(what):
            self.world.faults.setdefault(self.world.steps + 1, []).append(fault)
        elif strike(self, process, fault.kind, fault.value):
            self.world.struck.append(fault)

    def struck(self, kind: str) -> list[Fault]:
        """The faults of a kind that happened."""
        return [fault for fault in self.world.struck if fault.kind == kind]

    def work(self, what: str, seconds: float) -> str:
        """Some work of the process that has its turn; returns how a decoding fails, or ""."""
        process = self.world.running
        assert process is not None
        process.step(what)
        self.num_encoded += what == "encode"
        process.wait(seconds)
        return self.decode_faults.pop(0) if what == "decode" and self.decode_faults else ""

    def uuid4(self) -> uuid.UUID:
        """The next random id of this world."""
        return uuid.UUID(int=self._names.getrandbits(128), version=4)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace what would ask the machine, during the block."""
        Running.now = self
        pa.set_cpu_count(1)  # tables of a few rows
        with ExitStack() as stack:
            for target, value in (
                ("uuid.uuid4", self.uuid4),
                ("pipeline.stages.decode._child", lambda memory_gib: InlineChild()),
                ("pipeline.storage.leases.process", self._process_table()),
                # A driver waits for its results in another thread, so that it hears signals.
                ("jobs.run.driver.iterate", lambda results: results()),
                # In a store several clips are read at once; in a loop the next clip is decoded
                # in another thread.
                ("pipeline.cache.folders._for_each", _one_after_the_other),
                (
                    "pipeline.executors.local.done_ahead",
                    lambda jobs, work, most: done_ahead(jobs, work, 0),
                ),
                ("pyarrow.parquet.read_table", read_table),  # without a thread per file
                # The recipe is the same in every world, and YAML is slow.
                ("jobs.config.recipe.Job.to_yaml", lambda job: self.recipe),
                ("jobs.run.driver.git_commit", lambda: ""),
                ("jobs.run.driver.versions", _versions),
            ):
                stack.enter_context(patch(target, value))
            yield

    def _process_table(self) -> SimpleNamespace:
        """A replacement of `pipeline.runtime.process`."""
        world = self.world
        return SimpleNamespace(
            host=lambda: f"machine-{world.running.machine}",
            machine=lambda: f"boot-of-{world.running.machine}",
            pid=lambda: world.running.pid,
            is_running=lambda pid: any(
                one.pid == pid and not one.dead and not one.ended for one in world.processes
            ),
        )


def _written(one: Any) -> float:
    """Seconds since the start of the world at which a file of a listing was written."""
    written = one.get("LastModified") if isinstance(one, dict) else one.modified
    return (written - START).total_seconds() if written is not None else 0.0


def _one_after_the_other(function: Any, folder: Any, entries: Any) -> Iterator[tuple[Any, Any]]:
    return ((entry, function(folder, entry)) for entry in entries)


def read_table(source: Any, **options: Any) -> pa.Table:
    """Read a Parquet file in this thread."""
    with pq.ParquetFile(source) as file:
        return file.read(use_threads=False)


@cache
def _job(clips: int) -> tuple[Job, BuiltJob, str]:
    """A recipe over files that no process writes to, what it names, and its YAML."""
    folder = Path(tempfile.mkdtemp(prefix="tango-simulator-"))
    for index in range(MOST_CLIPS):
        (folder / f"clip-{index}.mp4").write_bytes(f"the bytes of clip {index}".encode())
    job = parse_job(
        {
            "benchmark": {"name": f"{MODEL}:Clips", "root": str(folder)},
            "model": {"name": f"{MODEL}:ENTRY"},
            "methods": list(METHODS),
            "limit": clips,
            "executor": "local",
            "hash_content": True,
            "decode": {"timeout_s": 20, "decoder": "pyav"},
        },
        "simulator",
    )
    return job, build(job), job.to_yaml()


_versions = cache(versions)


class Finished(NamedTuple):
    """How a driver ended: the name of the run's directory, and the result of the job."""

    run: str
    result: JobResult


def drive(
    running: Running,
    process: Process,
    *,
    steal: bool = False,
    resume: str | None = None,
    kind: Literal["sweep", "precompute"] = "sweep",
) -> Finished:
    """`tango sweep --continue`, with `--steal` or without, from the search to the summary.

    Args:
        running: The world.
        process: The driver.
        steal: Whether it takes the run from a living driver.
        resume: Run to resume instead of the newest unfinished one.
        kind: `precompute` only fills the caches.
    """
    job, output = running.job, running.output
    clock, open_storage = ClockOf(process), partial(running.storage, process)
    if resume:
        run_dir: Place | None = find_run(resume, output, open_storage=open_storage)
    else:
        run_dir = unfinished_run(job, output, open_storage=open_storage)
    if run_dir is None:
        run_dir = new_run_dir(job, output, clock=clock, open_storage=open_storage)
    board = JobBoard()

    def in_some_order(plan: Any, settings: Any) -> Iterator[Result]:
        """The clips in the order of the schedule, as workers of a cluster finish them."""
        if running.schedule.order:
            order = np.random.default_rng(running.schedule.order).permutation(plan.clips.num_rows)
            plan = replace(plan, clips=plan.clips.take(order))
        for result in run(plan, settings, board=board):
            yield result
            if process.signalled:  # as the main thread of a driver, between two clips
                raise Stopped(signal.SIGTERM)

    result = execute(
        job,
        running.built,
        kind,
        Locations(output, open_storage=open_storage, steal=steal, continues=True),
        run_dir,
        CONSOLE,
        run_plan=in_some_order,
        clock=clock,
        board=board,
    )
    if kind == "sweep":
        summarise(run_dir, open_storage(run_dir))
    return Finished(run_dir.name, result)


def summarise(run_dir: Place, storage: Storage) -> None:
    """Copy the answers, reduce them, and write `summary.json` into the run."""
    with tempfile.TemporaryDirectory(prefix="tango-simulator-") as above:
        folder = Path(above) / run_dir.name
        (folder / "answers").mkdir(parents=True)
        for name in storage.child("answers").names(".parquet"):
            (folder / "answers" / name).write_bytes(storage.child("answers").read(name))
        facts = JobFacts.from_json(json.loads(storage.read(FACTS_FILE)))
        summary = summarize_reduced(reduce_runs([folder], facts.mode), facts)
        save_summary(summary, storage)  # type: ignore[arg-type]


def compact(running: Running, process: Process) -> None:
    """`tango cache compact`."""
    for folder in _caches(running, process):
        if folder.cache is not None:
            list(compact_cache(folder))


def verify(running: Running, process: Process) -> None:
    """`tango cache verify --delete`, one clip at a time."""
    for folder in _caches(running, process):
        if folder.cache is not None:
            for location in folder.locations:
                if folder.problem_of(location):
                    folder.discard(location)


def collect(running: Running, process: Process) -> None:
    """`tango cache gc --yes`: delete leftovers of killed writers."""
    now = ClockOf(process).now()
    for removal in plan_removals(_caches(running, process), now, timedelta(days=30)):
        removal.apply()


def _caches(running: Running, process: Process) -> list[CacheFolder]:
    try:
        return find_caches(running.storage(process, str(running.output / "cache")))
    except FileNotFoundError:
        return []


ROLES: dict[str, Any] = {
    "driver": drive,
    "continue": drive,
    "steal": partial(drive, steal=True),
    "compact": compact,
    "verify": verify,
    "gc": collect,
}
