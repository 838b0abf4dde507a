"""What the processes of the world do: drive the run, look after caches, or read."""

from __future__ import annotations

import io
import json
import signal
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from jobs.results.facts import FACTS_FILE, JobFacts
from jobs.results.summary import reduce_runs, save_summary, summarize_reduced
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.outcome import JobResult
from jobs.run.run_dirs import find_run, new_run_dir, unfinished_run
from pipeline.cache.folders import CacheFolder, compact_cache, find_caches, plan_removals
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.progress.answers import read_answers
from pipeline.rows import Result
from pipeline.run import run
from pipeline.runtime.stopping import Stopped
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tests.chaos.simulator.faults import Arrive
from tests.chaos.simulator.running import Running, clock_of
from tests.chaos.simulator.world import Process

CONSOLE = Console(file=io.StringIO())


@dataclass(frozen=True)
class Finished:
    """A driver that came to its end.

    Attributes:
        run: Name of the run's directory.
        result: Of the job.
    """

    run: str
    result: JobResult


def arrive(running: Running, arrival: Arrive) -> Process:
    """Start one more process."""
    machine = arrival.machine if running.schedule.world != "disk" else 0
    count = len(running.world.processes)
    if arrival.role in ("continue", "steal"):
        program = partial(drive, running, steal=arrival.role == "steal")
        return running.world.spawn(f"driver-{count}", machine, program)
    return running.world.spawn(
        f"{arrival.role}-{count}", machine, partial(_ROLES[arrival.role], running)
    )


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
        steal: Whether a living driver loses the run.
        resume: Run to resume instead of the newest unfinished one.
        kind: `precompute` only fills the caches.
    """
    clock, open_storage = clock_of(process), running.opener(process)
    locations = Locations(running.output, open_storage=open_storage, steal=steal, continues=True)
    run_dir: Place | None = None
    if resume:
        run_dir = find_run(resume, running.output, open_storage=open_storage)
    else:
        run_dir = unfinished_run(running.job, running.output, open_storage=open_storage)
    if run_dir is None:
        run_dir = new_run_dir(running.job, running.output, clock=clock, open_storage=open_storage)
    board = JobBoard()
    execute_plan = partial(run, board=board)
    if running.schedule.executor == "cluster":
        from tests.chaos.simulator.cluster import Cluster

        execute_plan = Cluster(running, process).stream
    result = execute(
        running.job,
        running.built,
        kind,
        locations,
        run_dir,
        CONSOLE,
        run_plan=execute_plan,
        clock=clock,
        observers=[_Ear(process)],
        board=board,
    )
    if kind == "sweep":
        summarise(run_dir, open_storage(run_dir))
    return Finished(run_dir.name, result)


def summarise(run_dir: Place, storage: Storage) -> None:
    """What follows the answers: a copy of the run, its numbers, `summary.json` back in the run."""
    with tempfile.TemporaryDirectory(prefix="tango-simulator-") as above:
        folder = Path(above) / run_dir.name
        (folder / "answers").mkdir(parents=True)
        for name in storage.child("answers").names(".parquet"):
            (folder / "answers" / name).write_bytes(storage.child("answers").read(name))
        facts = JobFacts.from_json(json.loads(storage.read(FACTS_FILE)))
        summary = summarize_reduced(reduce_runs([folder], facts.mode), facts)
        save_summary(summary, storage)  # type: ignore[arg-type]


@dataclass
class _Ear:
    """Hears a signal between two clips, as the main thread of a driver does."""

    process: Process

    def started(self, plan: Plan, finished: int) -> None:
        """Nothing."""

    def result(self, row: Result) -> None:
        """After every clip."""
        if self.process.signalled:
            raise Stopped(signal.SIGTERM)

    def stopped(self) -> None:
        """Nothing."""


def compact(running: Running, process: Process) -> None:
    """`tango cache compact`."""
    for folder in _caches(running, process):
        if folder.cache is not None:
            list(compact_cache(folder, clock_of(process)))


def verify(running: Running, process: Process) -> None:
    """`tango cache verify --delete`, one clip at a time."""
    for folder in _caches(running, process):
        if folder.cache is not None:
            for location in folder.locations:
                if folder.problem_of(location):
                    folder.discard(location)


def collect(running: Running, process: Process) -> None:
    """`tango cache gc --yes`: leftovers of killed writers."""
    folders = _caches(running, process)
    for removal in plan_removals(folders, clock_of(process).now(), timedelta(days=30)):
        removal.apply()


def report(running: Running, process: Process) -> object:
    """Read the newest run while it is at work."""
    root = running.storage(running.output, process)
    names = [name for name in root.folders() if name != "cache"]
    return read_answers(root.child(names[-1]).child("answers")) if names else None


def _caches(running: Running, process: Process) -> list[CacheFolder]:
    """All token caches there are."""
    try:
        return find_caches(running.storage(str(running.output / "cache"), process))
    except FileNotFoundError:
        return []


_ROLES = {"compact": compact, "verify": verify, "gc": collect, "report": report}
