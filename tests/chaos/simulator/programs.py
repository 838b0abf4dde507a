"""What the processes of the world do: drive the run, or look after the caches."""

from __future__ import annotations

import io
import json
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import Console

from jobs.results.facts import FACTS_FILE, JobFacts
from jobs.results.summary import reduce_runs, save_summary, summarize_reduced
from jobs.run.driver import JobResult, execute
from jobs.run.locations import Locations
from jobs.run.run_dirs import find_run, new_run_dir, unfinished_run
from pipeline.cache.folders import CacheFolder, compact_cache, find_caches, plan_removals
from pipeline.metrics import JobBoard
from pipeline.rows import Result
from pipeline.run import run
from pipeline.runtime.stopping import Stopped
from pipeline.storage import Storage
from pipeline.storage.urls import Place
from tests.chaos.simulator.running import Running
from tests.chaos.simulator.world import ClockOf, Process

CONSOLE = Console(file=io.StringIO())


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
    clock, open_storage = ClockOf(process), running.opener(process)
    locations = Locations(running.output, open_storage=open_storage, steal=steal, continues=True)
    run_dir: Place | None = None
    if resume:
        run_dir = find_run(resume, running.output, open_storage=open_storage)
    else:
        run_dir = unfinished_run(running.job, running.output, open_storage=open_storage)
    if run_dir is None:
        run_dir = new_run_dir(running.job, running.output, clock=clock, open_storage=open_storage)
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
        running.job,
        running.built,
        kind,
        locations,
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
        return find_caches(running.storage(str(running.output / "cache"), process))
    except FileNotFoundError:
        return []


ROLES: dict[str, Any] = {
    "continue": drive,
    "steal": partial(drive, steal=True),
    "compact": compact,
    "verify": verify,
    "gc": collect,
}
