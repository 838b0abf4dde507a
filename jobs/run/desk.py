"""Where a job in a store keeps what must be on a disk: what it tells MLflow, and its results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.results.facts import JOB_FILE
from jobs.run.locations import Locations
from jobs.tracking.server import default_tracking_uri
from jobs.tracking.stored_events import StoredEvents, is_events_file
from pipeline.plan import Plan
from pipeline.rows import Row
from pipeline.storage.copies import local_copy
from pipeline.storage.leases import LeaseError
from pipeline.storage.urls import Place


class Desk:
    """A directory on this machine that stands for a run; an observer of its job.

    Args:
        path: The directory.
        events: Copies the events of the job to the run; `None` for a run on a disk.
    """

    def __init__(self, path: Path, events: StoredEvents | None = None) -> None:
        self.path = path
        self._events = events

    def started(self, plan: Plan, finished: int) -> None:
        """See `Observer`: by now the job has the lease of the run."""
        if self._events:
            self._events.start()

    def result(self, row: Row) -> None:
        """See `Observer`."""

    def stopped(self) -> None:
        """See `Observer`."""


@contextmanager
def desk_of(run_dir: Place, every_s: float) -> Iterator[Desk]:
    """The desk of a job; that of a local run is the run itself.

    What the job tells MLflow while it runs is there, and is copied to the run at intervals, when
    the job ends, and at once in whole files if it ends well.

    Args:
        run_dir: Of the run, with its recipe.
        every_s: Seconds between two samples of the job.
    """
    if isinstance(run_dir, Path):
        yield Desk(run_dir)
        return
    with local_copy(
        run_dir,
        lambda name: name == JOB_FILE,
        lambda name: is_events_file(name) and events.is_whole,
    ) as path:
        events = StoredEvents(run_dir, path, every_s)
        try:
            yield Desk(path, events)
        except BaseException as error:
            # After a `LeaseError` another driver goes on with the run.
            events.close(last_copy=not isinstance(error, LeaseError))
            raise
        events.close(last_copy=False)


@contextmanager
def results_of(run_dir: Place, desk: Path) -> Iterator[Path]:
    """The files of a run on this machine; what is written there is sent, and is on the desk."""
    with local_copy(run_dir, lambda name: not is_events_file(name)) as folder:
        yield folder
        if folder != desk:
            shutil.copytree(folder, desk, dirs_exist_ok=True)


def tracking_uri_of(locations: Locations) -> str | None:
    """Where a job logs; `None` for the SQLite store beside a run on a disk."""
    if locations.tracking_uri or isinstance(locations.output, Path):
        return locations.tracking_uri
    return default_tracking_uri(locations.output)
