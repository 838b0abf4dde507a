"""One simulated world at work: its stores, its processes, and what stands for the machine's parts.

Real are the driver, the planner, the token cache and its shards, the answer writer, the seals, both
leases, the store's client with its repetitions, the stages and the summary. Simulated are the disk
and the store below them, the time, process ids, the decode child and the cluster's scheduler.
"""

from __future__ import annotations

import random
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.config.recipe import Job, parse_job
from jobs.run.build import BuiltJob, build
from jobs.run.outcome import versions
from pipeline.stages.threads import Writers, done_ahead
from pipeline.storage import Storage
from pipeline.storage.urls import Place, Url, place
from tests.chaos.simulator.bucket import BucketState, SimulatedStore
from tests.chaos.simulator.disk import DiskState, SimulatedDisk
from tests.chaos.simulator.faults import BadDecode, Fault, PartialListing, Schedule, StaleListing
from tests.chaos.simulator.model import MOST_CLIPS, InlineChild
from tests.chaos.simulator.world import ClockOf, Process, World

JobT = TypeVar("JobT")
DoneT = TypeVar("DoneT")

MODEL = "tests.chaos.simulator.model"
METHODS = ({"name": "full"}, {"name": "uniform", "retention": 0.5})

_READ_AHEAD = 2


class Running:
    """A world with its stores.

    Args:
        schedule: What goes wrong.
        trace: Whether every step is noted.
    """

    now: ClassVar[Running]

    def __init__(self, schedule: Schedule, *, trace: bool = False) -> None:
        self.schedule = schedule
        self.world = World(schedule, self.strike, [] if trace else None)
        self.is_store = schedule.world == "store"
        self.disk, self.bucket = DiskState(), BucketState()
        self.state: DiskState | BucketState = self.bucket if self.is_store else self.disk
        self.output: Place = Url("s3://bucket/runs") if self.is_store else Path("/sim/runs")
        self.job, self.built, self.recipe = _job(schedule.clips)
        self.history: list[tuple[float, frozenset[str]]] = []
        self.listing_faults: list[Fault] = []
        self.decode_faults: list[BadDecode] = []
        self.ledgers: list[Any] = []
        self.poisoned: dict[int, str] = {}
        self.intact: set[tuple[str, ...]] = set()
        self.finished: set[tuple[str, ...]] = set()
        self.rotten: dict[str, bytes] = {}
        self.reference: dict[tuple[str, ...], object] = {}
        self.encoded: list[tuple[int, float]] = []
        self._names = random.Random(f"names {schedule.order}")

    def storage(self, where: str | Place, process: Process) -> Storage:
        """A directory as a process sees it."""
        found = place(where)
        if isinstance(found, Url):
            return Storage(SimulatedStore(self.bucket, process, self.listed), found.path)
        return Storage(SimulatedDisk(self.disk, process, self.listed), str(found))

    def opener(self, process: Process) -> Callable[[str | Place], Storage]:
        """In the place of `Storage.at`, for one process."""
        return lambda where: self.storage(where, process)

    def listed(self, path: str, found: list[Any]) -> list[Any]:
        """A listing as it arrives; only those of token caches may lag."""
        if not self.listing_faults or "/cache/" not in path:
            return found
        fault = self.listing_faults.pop(0)
        if isinstance(fault, PartialListing):
            return [one for index, one in enumerate(found) if index % fault.every]
        assert isinstance(fault, StaleListing)
        then = self.world.time - fault.seconds
        return [one for one in found if _written(one) <= then]

    def strike(self, fault: Fault, process: Process, what: str) -> None:
        """Let a fault happen, and note it if it did."""
        if fault.awaits(what):
            self.world.faults.setdefault(self.world.steps + 1, []).append(fault)
        elif fault.strike(self, process):
            self.world.struck.append(fault)
            if self.world.trace is not None:
                self.world.trace.append(f"      {'':8s} {process.name:12s} *** {fault}")

    def work(self, what: str, seconds: float) -> str:
        """Some work of the process that has its turn."""
        process = self.world.running
        assert process is not None
        process.step(what)
        if what == "encode":
            self.encoded.append((process.pid, self.world.time))
        process.wait(seconds)
        if what == "decode" and self.decode_faults:
            return self.decode_faults.pop(0).how
        return ""

    def done_ahead(
        self,
        jobs: Iterable[JobT],
        work: Callable[[JobT], DoneT],
        most: int,
    ) -> Generator[tuple[JobT, Future[DoneT]]]:
        """As beside a GPU in every second order of things, but by the thread that has its turn."""
        if self.schedule.order % 2 == 0:
            yield from done_ahead(jobs, work, 0)
            return
        ahead: deque[tuple[JobT, Future[DoneT]]] = deque()
        for job in jobs:
            ahead += done_ahead([job], work, 0)
            while len(ahead) > _READ_AHEAD:
                yield ahead.popleft()
        yield from ahead

    def writers_of_token_sets(self, most: int) -> Writers:
        """As beside a GPU in every second order of things, but by the thread that has its turn."""
        return Writers(0) if self.schedule.order % 2 == 0 else LateWriters(most)

    def uuid4(self) -> uuid.UUID:
        """The next random id of this world."""
        return uuid.UUID(int=self._names.getrandbits(128), version=4)

    @contextmanager
    def active(self) -> Iterator[None]:
        """While this world runs, nothing of the machine is asked."""
        Running.now = self
        _unlock_cached_properties()
        pa.set_cpu_count(1)  # tables of a few rows
        table = ProcessTable(self)
        with ExitStack() as stack:
            for target, value in (
                ("uuid.uuid4", self.uuid4),
                ("pipeline.stages.decode._child", lambda memory_gib: InlineChild()),
                ("pipeline.storage.leases.process", table),
                # In a store several clips are read at once, by threads that would take turns;
                # in a loop the next clip is decoded by one.
                (
                    "pipeline.cache.folders._for_each",
                    lambda call, folder, entries: ((one, call(folder, one)) for one in entries),
                ),
                (
                    "pipeline.executors.local.done_ahead",
                    lambda jobs, work, most: done_ahead(jobs, work, 0),
                ),
                ("pipeline.stages.answer.done_ahead", self.done_ahead),
                ("pipeline.stages.compress.Writers", self.writers_of_token_sets),
                ("pyarrow.parquet.read_table", read_table),  # without a thread per file
                # The recipe is the same in every world, and YAML is slow.
                ("jobs.config.recipe.Job.to_yaml", lambda job: self.recipe),
                ("jobs.run.outcome.git_commit", lambda: ""),
                ("jobs.run.outcome.versions", _versions),
            ):
                stack.enter_context(patch(target, value))
            yield


class LateWriting(Future[None]):
    """A file that is written when somebody waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> None:
        """Write it now."""
        if not self.done():
            try:
                self._work()
                self.set_result(None)
            except Exception as error:
                self.set_exception(error)
        super().result()


class LateWriters(Writers):
    """Threads that have no time until somebody waits."""

    def begin(self, work: Callable[[], None]) -> Future[None]:
        """Let it wait."""
        return LateWriting(work)


class ProcessTable:
    """In the place of `pipeline.runtime.process`."""

    def __init__(self, running: Running) -> None:
        self._world = running.world

    def _process(self) -> Process:
        assert self._world.running is not None
        return self._world.running

    def host(self) -> str:
        return f"machine-{self._process().machine}"

    def machine(self) -> str:
        return f"boot-of-{self._process().machine}"

    def pid(self) -> int:
        return self._process().pid

    def is_running(self, pid: int) -> bool:
        return any(
            one.pid == pid and not one.dead and not one.ended for one in self._world.processes
        )


def disk_of_this_process() -> SimulatedDisk:
    """For a storage that was sent to a worker."""
    running = Running.now
    assert running.world.running is not None
    return SimulatedDisk(running.disk, running.world.running, running.listed)


def store_of_this_process() -> SimulatedStore:
    """For a storage that was sent to a worker."""
    running = Running.now
    assert running.world.running is not None
    return SimulatedStore(running.bucket, running.world.running, running.listed)


def clock_of_this_process() -> ClockOf:
    """For a clock that was sent to a worker."""
    assert Running.now.world.running is not None
    return ClockOf(Running.now.world.running)


def clock_of(process: Process) -> ClockOf:
    """The clock of a process."""
    return ClockOf(process)


def _written(one: Any) -> float:
    """Seconds since the start of the world at which a file of a listing was written."""
    from tests.chaos.simulator.world import START

    written = one.get("LastModified") if isinstance(one, dict) else one.modified
    return (written - START).total_seconds() if written is not None else 0.0


def read_table(source: Any, **options: Any) -> pa.Table:
    """A Parquet file, read by this thread."""
    with pq.ParquetFile(source) as file:
        return file.read(use_threads=False)


@cache
def _unlock_cached_properties() -> None:
    """Python 3.11 shares a lock between all objects of a class, here those of several processes."""
    for module in [
        one for name, one in sys.modules.items() if name.startswith(("pipeline", "jobs"))
    ]:
        for owner in [one for one in vars(module).values() if isinstance(one, type)]:
            for value in vars(owner).values():
                if isinstance(value, cached_property) and hasattr(value, "lock"):
                    value.lock = nullcontext()


@cache
def _videos() -> str:
    """A directory with the clips' files, which nothing in the world writes to."""
    folder = Path(tempfile.mkdtemp(prefix="tango-simulator-"))
    for index in range(MOST_CLIPS):
        (folder / f"clip-{index}.mp4").write_bytes(f"the bytes of clip {index}".encode())
    return str(folder)


@cache
def _job(clips: int) -> tuple[Job, BuiltJob, str]:
    """A recipe, what it names, and its text."""
    job = parse_job(
        {
            "benchmark": {"name": f"{MODEL}:Clips", "root": _videos()},
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
