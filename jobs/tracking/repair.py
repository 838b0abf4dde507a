"""MLflow runs that say RUNNING although their driver is dead, set right.

A driver that is killed cannot say so; the next one that uses the store does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.results.facts import FACTS_FILE
from jobs.tracking.drivers import (
    DIRECTORY_TAG,
    DRIVER_TAG,
    HEARTBEAT_TAG,
    Driver,
    heartbeat_time,
)
from jobs.tracking.kept import spool_at_hand
from jobs.tracking.mlflow_runs import MlflowRuns
from jobs.tracking.replay import Replay
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.spool import Sent, has_events
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.remote.urls import Url, place

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

_MAX_RUNS = 1000


def repair(
    client: MlflowClient,
    experiment: str,
    tracking_uri: str,
    *,
    spare: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> list[str]:
    """End the runs of dead drivers: as they say in their directories, otherwise as KILLED.

    Runs without our tags are other people's and stay as they are. A driver on this machine is dead
    if its process is gone; one on another machine after a quarter of an hour of silence. What such
    a driver left in its run directory, on this machine or in a store, is sent first. Without that,
    the run ends at its last sign of life.

    Args:
        client: For the store.
        experiment: Id of the experiment.
        tracking_uri: Address of the store.
        spare: Id of a run that the caller works on itself.
        clock: Says how long a driver has been silent.

    Returns:
        Ids of the runs that were ended.
    """
    repaired = []
    running = "attributes.status = 'RUNNING'"
    for run in client.search_runs([experiment], running, max_results=_MAX_RUNS):
        name = str(run.info.run_id)
        driver = Driver.read(run.data.tags.get(DRIVER_TAG, ""))
        if name == spare or driver is None or _is_alive(run, driver, clock.now()):
            continue
        has_facts = False
        with _directory(run, driver) as directory:
            if directory and has_events(directory):
                runs = MlflowRuns(client, experiment, directory.name)
                Replay(runs, RunDirectory(directory), Sent.load(directory, tracking_uri)).send()
            has_facts = directory is not None and (directory / FACTS_FILE).is_file()
        if client.get_run(name).info.status == "RUNNING":
            _end(client, run, finished=has_facts)
        repaired.append(name)
    return repaired


@contextmanager
def _directory(run: Run, driver: Driver) -> Iterator[Path | None]:
    """What a driver left, on this machine; `None` if it is out of reach."""
    with ExitStack() as stack:
        found: Path | None = None
        try:
            where = place(run.data.tags.get(DIRECTORY_TAG) or "/nowhere")
            if isinstance(where, Url):
                found = stack.enter_context(spool_at_hand(where))
            elif driver.is_here():
                found = where
        except (OSError, ValueError, ModuleNotFoundError) as error:
            logger.debug("what a dead driver left is out of reach: %s", error)
        yield found


def _is_alive(run: Run, driver: Driver, now: datetime) -> bool:
    """Whether the driver of a run can be at work."""
    return driver.is_alive(run.data.tags.get(HEARTBEAT_TAG, ""), now)


def _end(client: MlflowClient, run: Run, *, finished: bool) -> None:
    """Mark one run, at its last sign of life."""
    seen = heartbeat_time(client.get_run(run.info.run_id).data.tags.get(HEARTBEAT_TAG, ""))
    ended_ms = int(seen.timestamp() * 1000) if seen else None
    if not finished:
        client.set_tag(run.info.run_id, "ended", "the driver died without a word")
    client.set_terminated(run.info.run_id, "FINISHED" if finished else "KILLED", ended_ms)
