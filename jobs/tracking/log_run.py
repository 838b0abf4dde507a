"""From a run directory to MLflow runs: what happened on the way, and the results.

Everything logged is read from the directory, so the upload at the end of a job and a later
`tango log-run` are one path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jobs.tracking.mlflow_runs import EXPERIMENT, MlflowRuns, nothing
from jobs.tracking.repair import repair
from jobs.tracking.replay import Replay
from jobs.tracking.results_upload import Results, ResultsUpload
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.server import (
    ClientFactory,
    PortCheck,
    check_port,
    default_tracking_uri,
    experiment_id,
    mlflow_client,
    raise_if_unusable,
    tracking_errors,
)
from jobs.tracking.spool import Sent, has_events
from pipeline.clock import SYSTEM_CLOCK, Clock


def log_run(
    run_dir: Path,
    tracking_uri: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    open_run: Callable[[Path], RunDirectory] = RunDirectory,
    connect: ClientFactory = mlflow_client,
    port_check: PortCheck = check_port,
    progress: Callable[[], None] = nothing,
    begun: ResultsUpload | None = None,
) -> str:
    """Upload a run from its directory alone; repeating it updates the same MLflow runs.

    First comes what the job said while it ran and the store missed, then the results. A run with
    one cell becomes one MLflow run; a run with several becomes a parent with one child per cell.
    All files belong to the parent. A run that never finished has only the first part, and is marked
    as KILLED if its driver is dead.

    Args:
        run_dir: Holds at least `facts.json` and `summary.json`, or what a job said until it was
            killed; `job.yaml` unless it was imported.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.
        clock: Gives the time at which metrics are logged.
        open_run: Reads the run directory.
        connect: Makes the client for the tracking server or store.
        port_check: Finds out whether a server listens.
        progress: Called after every request that came back.
        begun: What has sent the numbers of this run already.

    Returns:
        The id of the MLflow run (of the parent).

    Raises:
        FileNotFoundError: If the directory is no run, or one without results and without a record
            of its job.
        TrackingError: If the store cannot be reached or refuses the run.
        ValueError: If the URI names MLflow's retired file store, or a file of the run is damaged.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    raise_if_unusable(uri, port_check)
    files = open_run(run_dir)
    results = None if _only_begun(files) else Results(files)
    with tracking_errors():
        client = connect(uri)
        experiment = experiment_id(client, EXPERIMENT, uri, files.artifact_root())
        progress()
        runs = MlflowRuns(client, experiment, run_dir.name, progress)
        sent = Sent.load(run_dir, uri)
        Replay(runs, files, sent).send()
        if results is not None:
            return (begun or ResultsUpload(runs, files, results, clock)).everything()
        repair(client, experiment, uri, clock=clock)
        return sent.run


def _only_begun(files: RunDirectory) -> bool:
    """Whether a job began and did not end; what it said while it ran is all there is."""
    if not has_events(files.path):
        return False
    try:
        files.facts()
    except FileNotFoundError:
        return True
    return False
