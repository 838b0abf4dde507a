"""Where a job in a store keeps what must be on a disk: what it tells MLflow, and its results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.run.locations import Locations
from jobs.tracking.server import default_tracking_uri
from jobs.tracking.spool import FOLDER
from pipeline.remote.copies import local_copy
from pipeline.remote.urls import Place


@contextmanager
def desk_of(run_dir: Place) -> Iterator[Path]:
    """A directory on this machine that stands for a run; a local run is its own.

    What the job tells MLflow while it runs is there, and is sent to the run when the job ends well.
    """
    with local_copy(run_dir, _is_spool, _is_spool) as desk:
        yield desk


@contextmanager
def results_of(run_dir: Place, desk: Path) -> Iterator[Path]:
    """The files of a run on this machine; what is written there is sent, and is on the desk."""
    with local_copy(run_dir) as folder:
        yield folder
        if folder != desk:
            shutil.copytree(folder, desk, dirs_exist_ok=True)


def tracking_uri_of(locations: Locations) -> str | None:
    """Where a job logs; `None` for the SQLite store beside a run on a disk."""
    if locations.tracking_uri or isinstance(locations.output, Path):
        return locations.tracking_uri
    return default_tracking_uri(locations.output)


def _is_spool(name: str) -> bool:
    """Whether a file of a run is what the job tells MLflow while it runs."""
    return name.startswith(f"{FOLDER}/")
