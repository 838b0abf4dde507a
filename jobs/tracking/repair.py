"""MLflow runs that say RUNNING although their driver is dead, set right.

A driver that is killed cannot say so; the next one that uses the store does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from jobs.tracking.mlflow_runs import MlflowRuns
from jobs.tracking.parts import spool_at_hand
from jobs.tracking.replay import Replay
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.spool import Sent, has_events
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.object_lease import lease_of
from pipeline.remote.urls import Url, place
from pipeline.storage import Storage

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
    if its process is gone; one on another machine after a quarter of an hour of silence, unless a
    living driver has the lease of its run directory. What a dead driver left there, on this machine
    or in a store, is sent first. Without that, the run ends at its last sign of life.

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
        if name == spare or driver is None or _is_alive(run, driver, clock):
            continue
        has_facts = False
        with _directory(run, driver) as directory:
            runs = MlflowRuns(client, experiment, directory.name if directory else "")
            if directory and has_events(directory):
                Replay(runs, RunDirectory(directory), Sent.load(directory, tracking_uri)).send()
            has_facts = directory is not None and (directory / FACTS_FILE).is_file()
        if client.get_run(name).info.status == "RUNNING":
            _end(runs, name, finished=has_facts)
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


def _is_alive(run: Run, driver: Driver, clock: Clock) -> bool:
    """Whether the driver of a run can be at work."""
    if driver.is_alive(run.data.tags.get(HEARTBEAT_TAG, ""), clock.now()):
        return True
    return not driver.is_here() and _is_leased(run, clock)


def _is_leased(run: Run, clock: Clock) -> bool:
    """Whether a living driver has a run directory, as far as it can be seen from here.

    The tracking server may have been away from a driver that the disk or the store still hears.
    """
    try:
        storage = Storage.at(run.data.tags.get(DIRECTORY_TAG) or "/nowhere")
        return lease_of(storage, clock).living() is not None
    except (OSError, ValueError, ModuleNotFoundError) as error:
        logger.debug("the lease of a silent driver is out of reach: %s", error)
        return False


def _end(runs: MlflowRuns, run: str, *, finished: bool) -> None:
    """Mark one run, at its last sign of life."""
    seen = heartbeat_time(runs.client.get_run(run).data.tags.get(HEARTBEAT_TAG, ""))
    ended_ms = int(seen.timestamp() * 1000) if seen else None
    reason = "" if finished else "the driver died without a word"
    runs.end(run, "FINISHED" if finished else "KILLED", ended_ms, reason)
