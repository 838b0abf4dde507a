"""One simulated world at work: its stores, its processes, and replacements of the machine's parts.

Real are the driver, the planner, the token cache and its shards, the answer writer, the seals, both
leases, the store's client with its repetitions, the stages and the summary. Simulated are the disk
and the store below them, the time, process ids and the decode child.
"""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.config.recipe import Job, parse_job
from jobs.run.build import BuiltJob, build
from jobs.run.driver import versions
from pipeline.runtime.background import done_ahead
from pipeline.storage import Storage
from pipeline.storage.urls import Place, Url, place
from tests.chaos.simulator.bucket import BucketState, SimulatedStore
from tests.chaos.simulator.disk import DiskState, SimulatedDisk
from tests.chaos.simulator.faults import Fault, Schedule
from tests.chaos.simulator.model import MOST_CLIPS, InlineChild
from tests.chaos.simulator.world import START, Process, World

MODEL = "tests.chaos.simulator.model"
METHODS = ({"name": "full"}, {"name": "uniform", "retention": 0.5})


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

    def spawn(self, role: str, machine: int, program: Callable[..., Any], **how: Any) -> Process:
        """Start one more process; the program gets this world and its process."""
        name = f"{role}-{len(self.world.processes)}"
        return self.world.spawn(name, machine, partial(program, self, **how))

    def storage(self, where: str | Place, process: Process) -> Storage:
        """A directory as a process sees it."""
        found = place(where)
        if isinstance(found, Url):
            return Storage(SimulatedStore(self.bucket, process, self.listed), found.path)
        return Storage(SimulatedDisk(self.disk, process, self.listed), str(found))

    def opener(self, process: Process) -> Callable[[str | Place], Storage]:
        """A replacement of `Storage.at` for one process."""
        return lambda where: self.storage(where, process)

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
        elif fault.strike(self, process):
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
