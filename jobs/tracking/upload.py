"""From a finished run directory to MLflow; a tracking server that is down never costs a result.

Everything logged is read from the directory, so the upload at the end of a job and a later
`tango log-run` are one path. MLflow is imported when something is logged, not before.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import yaml

from jobs.results.facts import JobFacts
from jobs.results.summary import SUMMARY_FILE
from jobs.tracking.values import cell_metrics, cell_params, flatten, run_metrics, tags_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

EXPERIMENT = "tango"
RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
ARTIFACTS = ("job.yaml", "facts.json", SUMMARY_FILE, "report.html", "failures.parquet")
FOLDERS = ("answers", "plots")
_MAX_KEY, _MAX_VALUE = 250, 6000
_MAX_PARAMS, _MAX_METRICS = 100, 1000


class TrackingError(OSError):
    """A run could not be uploaded; its directory is complete all the same."""


def default_tracking_uri(output: Path) -> str:
    """The SQLite store beside the runs: `sqlite:///<output>/mlflow.db`."""
    return f"sqlite:///{output.resolve() / 'mlflow.db'}"


def track_run(
    run_dir: Path, tracking_uri: str | None = None, *, timeout_s: float = 600.0
) -> str | None:
    """Upload a finished run and never fail: what goes wrong becomes one warning.

    The upload runs in a process of its own, because a server that accepts connections and then
    stays silent can hold MLflow's client for many minutes.

    Args:
        run_dir: A finished run.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.
        timeout_s: Time limit of the upload.

    Returns:
        The MLflow run id, or `None` if the run was not (completely) uploaded.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    command = [sys.executable, "-m", "jobs.tracking.upload", str(run_dir), uri]
    # The child needs this process's packages, and reports nothing home.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout_s:g} s"
    else:
        if done.returncode == 0:
            return done.stdout.strip().splitlines()[-1]
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    logger.warning(
        "not logged to MLflow at %s (%s); the results are in %s, upload them with "
        "`tango log-run %s --tracking-uri %s`",
        uri,
        reason,
        run_dir,
        run_dir,
        uri,
    )
    return None


def log_run(run_dir: Path, tracking_uri: str | None = None) -> str:
    """Upload a finished run from its directory alone; repeating it updates the same MLflow runs.

    A run with one cell becomes one MLflow run; a run with several becomes a parent with one child
    per cell. All files belong to the parent.

    Args:
        run_dir: Holds at least `facts.json` and `summary.json`; `job.yaml` unless it was imported.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.

    Returns:
        The id of the MLflow run (of the parent).

    Raises:
        FileNotFoundError: If the directory is not a finished run.
        TrackingError: If the store cannot be reached or refuses the run.
        ValueError: If the URI names MLflow's retired file store.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    _raise_if_unusable(uri)
    facts = JobFacts.load(run_dir)
    summary = _read_summary(run_dir)
    job = run_dir / "job.yaml"
    params = (
        flatten(yaml.safe_load(job.read_text()))
        if job.is_file()
        else cell_params(summary["cells"][0], facts)
    )
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, uri, run_dir.parent)
        tags = tags_of(facts)
        parent = _start(client, experiment, facts, facts.run_id, {**tags, RUN_TAG: facts.run_id})
        several = len(summary["cells"]) > 1
        metrics = run_metrics(summary) if several else cell_metrics(summary)
        _log(client, parent, params, metrics)
        for cell in summary["cells"] if several else ():
            name = f"{cell['benchmark']}: {cell['cell']}"
            own = {RUN_TAG: facts.run_id, CELL_TAG: name, "mlflow.parentRunId": parent}
            child = _start(client, experiment, facts, name, {**tags, **own})
            _log(client, child, cell_params(cell, facts), cell_metrics(cell))
            client.log_dict(child, cell, SUMMARY_FILE)
            _finish(client, child, facts)
        for file in ARTIFACTS:
            if (run_dir / file).is_file():
                client.log_artifact(parent, str(run_dir / file))
        for folder in FOLDERS:
            if (run_dir / folder).is_dir():
                client.log_artifacts(parent, str(run_dir / folder), folder)
        _finish(client, parent, facts)
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{type(error).__name__}: {_one_line(error)}") from error
    return parent


def _raise_if_unusable(uri: str) -> None:
    """Refuse the file store; find out within seconds that nobody listens at an address."""
    parts = urlparse(uri)
    if parts.scheme in ("", "file"):
        raise ValueError(
            f"tracking_uri {uri!r} is MLflow's retired file store; "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        )
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=5).close()
        except OSError as error:
            raise TrackingError(f"nothing listens at {parts.hostname}:{port}: {error}") from error


def raise_if_unreachable(tracking_uri: str) -> bool:
    """Ask a server or store one question, with the client that uploads runs.

    Returns:
        `False` for a SQLite store that is not there, which is made with the first run.

    Raises:
        TrackingError: If it does not answer, or is of another version of MLflow.
        ValueError: If the URI names MLflow's retired file store.
    """
    _raise_if_unusable(tracking_uri)
    parts = urlparse(tracking_uri)
    if parts.scheme == "sqlite" and not Path(parts.path[1:]).is_file():
        return False
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        MlflowClient(tracking_uri=tracking_uri).search_experiments(max_results=1)
    except (MlflowException, OSError) as error:
        raise TrackingError(f"{type(error).__name__}: {_one_line(error)}") from error
    return True


def _read_summary(run_dir: Path) -> dict[str, Any]:
    """`summary.json` of a finished run."""
    path = run_dir / SUMMARY_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{run_dir} holds no {SUMMARY_FILE}; write it with `tango report {run_dir}`"
        )
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary


def _experiment(client: MlflowClient, uri: str, output: Path) -> str:
    """Id of the experiment; a local store keeps its files beside its database."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    local = urlparse(uri).scheme not in ("http", "https")
    root = (output.resolve() / "mlartifacts").as_uri() if local else None
    return str(client.create_experiment(EXPERIMENT, artifact_location=root))


def _start(
    client: MlflowClient, experiment: str, facts: JobFacts, name: str, tags: Mapping[str, str]
) -> str:
    """Id of the MLflow run of a run or cell; made once, found again when it is logged again."""
    cell = tags.get(CELL_TAG)
    for run in client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{facts.run_id}'"):
        if run.data.tags.get(CELL_TAG) == cell:
            for key, value in tags.items():
                client.set_tag(run.info.run_id, key, value)
            return str(run.info.run_id)
    started = _milliseconds(facts.started_at)
    run = client.create_run(experiment, start_time=started, tags=dict(tags), run_name=name)
    return str(run.info.run_id)


def _log(
    client: MlflowClient, run: str, params: Mapping[str, str], metrics: Mapping[str, float]
) -> None:
    """Parameters and metrics in as few requests as the store allows."""
    from mlflow.entities import Metric, Param

    logged = client.get_run(run).data.params
    now = int(time.time() * 1000)
    pairs = []
    for key, text in params.items():
        name, value = key[:_MAX_KEY], text[:_MAX_VALUE]
        if logged.get(name, value) == value:
            pairs.append(Param(name, value))
        else:
            # MLflow never changes a parameter; a resumed job may, e.g. the size of its pools.
            client.set_tag(run, f"resumed.{name}", value)
    values = [Metric(key[:_MAX_KEY], float(value), now, 0) for key, value in metrics.items()]
    for start in range(0, len(pairs), _MAX_PARAMS):
        client.log_batch(run, params=pairs[start : start + _MAX_PARAMS])
    for start in range(0, len(values), _MAX_METRICS):
        client.log_batch(run, metrics=values[start : start + _MAX_METRICS])


def _finish(client: MlflowClient, run: str, facts: JobFacts) -> None:
    """Mark a run as finished when the job finished, not when it was uploaded."""
    started = _milliseconds(facts.started_at)
    ended = started + round(1000 * facts.wall_s) if started and facts.wall_s else None
    client.set_terminated(run, end_time=ended)


def _milliseconds(started_at: str) -> int | None:
    """An ISO 8601 time as milliseconds since 1970."""
    return round(datetime.fromisoformat(started_at).timestamp() * 1000) if started_at else None


def _one_line(error: BaseException) -> str:
    """The first line of an error, short enough for a log."""
    return (str(error).strip().splitlines() or [""])[0][:300]


def main(arguments: Sequence[str]) -> int:
    """Upload one run in this process and print its MLflow id: `python -m jobs.tracking.upload`."""
    try:
        print(log_run(Path(arguments[0]), arguments[1]))
    except (TrackingError, FileNotFoundError, ValueError) as error:
        print(_one_line(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
