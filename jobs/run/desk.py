"""Local directories for runs in an object store: what must be on a disk while a job runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.results.facts import JOB_FILE
from jobs.run.locations import Locations
from jobs.tracking.events import is_events_file
from jobs.tracking.server import default_tracking_uri
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place


@contextmanager
def desk_of(run_dir: Place) -> Iterator[Path]:
    """A local directory with the recipe of a run and the metrics it records for MLflow.

    That of a local run is the run itself. Metrics of a run in a store are uploaded to it when the
    job ends without an error.
    """
    with local_copy(
        run_dir, lambda name: name == JOB_FILE or is_events_file(name), is_events_file
    ) as folder:
        yield folder


@contextmanager
def results_of(run_dir: Place, desk: Path) -> Iterator[Path]:
    """A local copy of a run; files written there are uploaded, and copied to `desk`."""
    with local_copy(run_dir, lambda name: not is_events_file(name)) as folder:
        yield folder
        if folder != desk:
            shutil.copytree(folder, desk, dirs_exist_ok=True)


def tracking_uri_of(locations: Locations) -> str | None:
    """Where a job logs; `None` for the SQLite store beside a run on a disk."""
    if locations.tracking_uri or isinstance(locations.output, Path):
        return locations.tracking_uri
    return default_tracking_uri(locations.output)
