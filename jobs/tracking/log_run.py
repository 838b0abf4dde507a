"""From a finished run directory to MLflow runs.

Everything logged is read from the directory, so the upload at the end of a job and a later
`tango log-run` are one path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.results.facts import JobFacts
from jobs.results.summary import SUMMARY_FILE
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
from jobs.tracking.values import cell_metrics, cell_params, flatten, run_metrics, tags_of
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.remote.copies import local_copy
from pipeline.remote.urls import Place, Url

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "tango"
RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
# Limits of MLflow's stores: characters, and entries per request.
_MAX_KEY, _MAX_VALUE = 250, 6000
_MAX_PARAMS, _MAX_METRICS = 100, 1000


def log_run(
    run_dir: Place,
    tracking_uri: str | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    open_run: Callable[[Path, Url | None], RunDirectory] = RunDirectory,
    connect: ClientFactory = mlflow_client,
    port_check: PortCheck = check_port,
) -> str:
    """Upload a finished run from its directory alone; repeating it updates the same MLflow runs.

    A run with one cell becomes one MLflow run; a run with several becomes a parent with one child
    per cell. All files belong to the parent.

    Args:
        run_dir: Holds at least `facts.json` and `summary.json`; `job.yaml` unless it was imported.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.
        clock: Gives the time at which metrics are logged.
        open_run: Reads the run directory.
        connect: Makes the client for the tracking server or store.
        port_check: Finds out whether a server listens.

    Returns:
        The id of the MLflow run (of the parent).

    Raises:
        FileNotFoundError: If the directory is not a finished run.
        TrackingError: If the store cannot be reached or refuses the run.
        ValueError: If the URI names MLflow's retired file store, or a file of the run is damaged.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    raise_if_unusable(uri, port_check)
    with local_copy(run_dir) as folder:
        files = open_run(folder, run_dir if isinstance(run_dir, Url) else None)
        return _log(files, uri, clock, connect)


def _log(files: RunDirectory, uri: str, clock: Clock, connect: ClientFactory) -> str:
    """Upload what is in a directory; returns the id of the parent."""
    facts, summary, job = files.facts(), files.summary(), files.job()
    params = cell_params(summary.cells[0], facts) if job is None else flatten(job)
    several = len(summary.cells) > 1
    metrics = run_metrics(summary)
    if not several:
        metrics = {**cell_metrics(summary.cells[0]), **metrics}
    with tracking_errors():
        client = connect(uri)
        experiment = experiment_id(client, EXPERIMENT, uri, files.artifact_root())
        log = _RunLog(client, experiment, facts, clock)
        parent = log.start(facts.run_id, {})
        log.values(parent, params, metrics)
        for cell in summary.cells if several else ():
            name = f"{cell.benchmark}: {cell.name}"
            child = log.start(name, {CELL_TAG: name, "mlflow.parentRunId": parent})
            log.values(child, cell_params(cell, facts), cell_metrics(cell))
            client.log_dict(child, cell.to_json(), SUMMARY_FILE)
            log.finish(child)
        for file in files.artifacts():
            client.log_artifact(parent, str(file))
        for folder in files.folders():
            client.log_artifacts(parent, str(folder), folder.name)
        log.finish(parent)
    return parent


@dataclass(frozen=True)
class _RunLog:
    """Writes the MLflow runs of one run directory."""

    client: MlflowClient
    experiment: str
    facts: JobFacts
    clock: Clock

    def start(self, name: str, own_tags: Mapping[str, str]) -> str:
        """Id of the MLflow run of a run or cell; made once, found again when logged again."""
        tags = {**tags_of(self.facts), RUN_TAG: self.facts.run_id, **own_tags}
        query = f"tags.`{RUN_TAG}` = '{self.facts.run_id}'"
        for run in self.client.search_runs([self.experiment], query):
            if run.data.tags.get(CELL_TAG) == tags.get(CELL_TAG):
                for key, value in tags.items():
                    self.client.set_tag(run.info.run_id, key, value)
                return str(run.info.run_id)
        run = self.client.create_run(
            self.experiment, start_time=self._started_ms(), tags=tags, run_name=name
        )
        return str(run.info.run_id)

    def values(self, run: str, params: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        """Parameters and metrics in as few requests as the store allows."""
        from mlflow.entities import Metric, Param

        logged = self.client.get_run(run).data.params
        now = self._now_ms()
        pairs = []
        for key, text in params.items():
            name, value = key[:_MAX_KEY], text[:_MAX_VALUE]
            if logged.get(name, value) == value:
                pairs.append(Param(name, value))
            else:
                # MLflow never changes a parameter; a resumed job may, e.g. the size of its pools.
                self.client.set_tag(run, f"resumed.{name}", value)
        values = [Metric(key[:_MAX_KEY], float(value), now, 0) for key, value in metrics.items()]
        for start in range(0, len(pairs), _MAX_PARAMS):
            self.client.log_batch(run, params=pairs[start : start + _MAX_PARAMS])
        for start in range(0, len(values), _MAX_METRICS):
            self.client.log_batch(run, metrics=values[start : start + _MAX_METRICS])

    def finish(self, run: str) -> None:
        """Mark a run as finished when the job finished; now, if that is not known."""
        started, wall_s = self._started_ms(), self.facts.wall_s
        ended = started + round(1000 * wall_s) if started and wall_s else self._now_ms()
        self.client.set_terminated(run, end_time=ended)

    def _now_ms(self) -> int:
        """The time of the upload, in milliseconds since 1970."""
        return int(self.clock.now().timestamp() * 1000)

    def _started_ms(self) -> int | None:
        """When the job started, in milliseconds since 1970."""
        if not self.facts.started_at:
            return None
        return round(datetime.fromisoformat(self.facts.started_at).timestamp() * 1000)
