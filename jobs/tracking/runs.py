"""Create, find and update the MLflow runs of a run directory."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse

import yaml

from jobs.config.overrides import load_yaml
from jobs.results.facts import FACTS_FILE, JOB_FILE
from jobs.tracking import contents
from pipeline.redaction import redacted, redacted_inside
from pipeline.storage import Storage
from pipeline.storage.leases import Lease
from pipeline.storage.urls import Place, is_url, place
from tango_core.errors import InputError, UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run


RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
DIRECTORY_TAG = "tango.run_dir"
PARENT_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"
ENDED_TAG = "ended"
EXPERIMENT = "tango"
DIED = "the driver died before it could record an end"
# Limits of MLflow's stores: characters, and runs of one search.
_MAX_KEY, _MAX_VALUE = 250, 6000
_MAX_RUNS = 10_000
# Suffixes of text files, which may contain a URL with a password.
_TEXT = (".yaml", ".json", ".html", ".md", ".csv")

Point = tuple[str, float, int, int]
"""Name, value, time in ms since 1970, and step of a metric."""


class ReportingClient:
    """MLflow client that calls `progress` after every completed request."""

    def __init__(self, client: MlflowClient, progress: Callable[[], None]) -> None:
        self._client, self._progress = client, progress

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            self._progress()
            return result

        return call


@dataclass(frozen=True)
class MlflowRuns:
    """Access to the MLflow runs of one run directory, in few requests.

    Attributes:
        client: Client of the MLflow store.
        experiment: Id of the experiment.
        home: The run directory.
    """

    client: MlflowClient | ReportingClient
    experiment: str
    home: Place

    @classmethod
    def connect(cls, uri: str, home: Place, progress: Callable[[], None] = lambda: None) -> Self:
        """Connect to a store; creates the experiment if it does not exist.

        Args:
            uri: MLflow server or store.
            home: The run directory.
            progress: Called after every completed request.
        """
        client = ReportingClient(mlflow_client(uri), progress)
        found = client.get_experiment_by_name(EXPERIMENT)
        if found is None:
            root = home.parent / "mlartifacts"  # a server has its own location for files
            location = root.absolute().as_uri() if isinstance(root, Path) else str(root)
            place_of_files = None if is_remote(uri) else location
            client.create_experiment(EXPERIMENT, artifact_location=place_of_files)
            found = client.get_experiment_by_name(EXPERIMENT)
        view = contents.view_of_experiment()
        if found.tags.get(contents.VIEW_TAG) != view:
            client.set_experiment_tag(found.experiment_id, contents.VIEW_TAG, view)
        return cls(client, str(found.experiment_id), home)

    def begin(self, recipe: Mapping[str, Any], command: str, num_clips: int) -> str:
        """Find or create the MLflow run of a job that starts; returns its id."""
        tags = {**contents.job_tags(recipe, command), "num_clips": str(num_clips)}
        note = (
            f"`tango {command}` of **{tags.get('model')}** on {tags.get('benchmark')}, "
            f"{num_clips} clips. It has no results yet."
        )
        run = self.start({**tags, NOTE_TAG: note}, int(1000 * time.time()))
        run_id = str(run.info.run_id)
        self.settings(run, contents.flatten(recipe), contents.datasets_of(recipe))
        if run.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        if ENDED_TAG in run.data.tags:
            self.client.delete_tag(run_id, ENDED_TAG)
        return run_id

    def end_dead_runs(self) -> None:
        """End MLflow runs with status RUNNING whose directory is here and has no living driver.

        They become FINISHED if their results are on disk, else KILLED; `tango log-run` uploads
        missing results.
        """
        for run in self.search("attributes.status = 'RUNNING'"):
            recorded = run.data.tags.get(DIRECTORY_TAG)
            if not recorded or recorded == str(self.home):
                continue
            with suppress(OSError, UserError):
                storage = Storage.at(place(recorded))
                if storage.exists(JOB_FILE) and Lease(storage).living() is None:
                    complete = storage.exists(FACTS_FILE)
                    status, reason = ("FINISHED", "") if complete else ("KILLED", DIED)
                    self.end(str(run.info.run_id), status, None, reason)

    def search(self, query: str = "") -> list[Run]:
        """MLflow runs that match a query; by default those with the name of this run directory."""
        query = query or f"tags.`{RUN_TAG}` = '{self.home.name}'"
        return list(self.client.search_runs([self.experiment], query, max_results=_MAX_RUNS))

    def find(self, tags: Mapping[str, str], existing: Sequence[Run] | None = None) -> Run | None:
        """The MLflow run of the run directory, or of the cell that `tags` name.

        Two jobs that start in the same second in different output directories have the same name. A
        recorded directory that still exists elsewhere belongs to another run; if it no longer
        exists, the run directory has been moved.
        """
        for run in self.search() if existing is None else existing:
            found = run.data.tags
            if all(found.get(name) == tags.get(name) for name in (CELL_TAG, PARENT_TAG)):
                recorded = found.get(DIRECTORY_TAG, "")
                is_elsewhere = recorded != str(self.home) and not is_url(recorded)
                if not (recorded and is_elsewhere and (Path(recorded) / JOB_FILE).is_file()):
                    return run
        return None

    def start(
        self,
        tags: Mapping[str, str],
        started_ms: int | None,
        name: str | None = None,
        existing: Sequence[Run] | None = None,
    ) -> Run:
        """Find the MLflow run of a run directory or cell, or create it.

        Args:
            tags: Tags of the run; those of a cell include `CELL_TAG`.
            started_ms: Start in milliseconds since 1970, used only if the run is created.
            name: Name of a created run; `None` for the name of the directory with the time moved
                to the end, because lists truncate names.
            existing: Already fetched runs; `None` to query the store.
        """
        all_tags = {**tags, RUN_TAG: self.home.name, DIRECTORY_TAG: str(self.home)}
        if run := self.find(all_tags, existing):
            self.log(run.info.run_id, tags=all_tags)
            return run
        if name is None:
            stamp = re.match(r"(\d{8}-\d{6})-(.+)", self.home.name)
            name = f"{stamp[2]} {stamp[1]}" if stamp else self.home.name
        created: Run = self.client.create_run(
            self.experiment, start_time=started_ms, tags=_clean(all_tags), run_name=name
        )
        return created

    def log(
        self, run: str, *, metrics: Sequence[Point] = (), tags: Mapping[str, str] | None = None
    ) -> None:
        """Log metric points and set tags; points that the store already has are not duplicated.

        MLflow's client splits them into requests of the size that the store accepts.
        """
        from mlflow.entities import Metric, RunTag

        values = [Metric(key[:_MAX_KEY], float(value), *when) for key, value, *when in metrics]
        names = [RunTag(key[:_MAX_KEY], value) for key, value in _clean(tags or {}).items()]
        self.client.log_batch(run, metrics=values, tags=names)

    def settings(
        self,
        run: Run,
        params: Mapping[str, str],
        datasets: Sequence[DatasetInput],
        metrics: Sequence[Point] = (),
    ) -> None:
        """Log parameters and dataset inputs that the run does not have yet, and metric points.

        MLflow parameters cannot be changed; values changed by a resumed job are logged as tags.
        """
        from mlflow.entities import Param

        logged, kept = run.data.params, dict[str, str]()
        for key, text in params.items():
            kept[key[:_MAX_KEY]] = redacted(text)[:_MAX_VALUE]
        changed = {name for name, value in kept.items() if logged.get(name, value) != value}
        pairs = [Param(name, value) for name, value in kept.items() if name not in changed]
        self.client.log_batch(run.info.run_id, params=pairs)
        # For example the sizes of pools.
        tags = {f"resumed.{name}": kept[name] for name in changed}
        self.log(run.info.run_id, metrics=metrics, tags=tags)
        known = run.inputs.dataset_inputs if run.inputs else ()
        digests = {one.dataset.digest for one in known}
        if new := [one for one in datasets if one.dataset.digest not in digests]:
            self.client.log_inputs(run.info.run_id, new)

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Upload one file; secrets in text files are redacted, see `without_secrets`."""
        clean = without_secrets(path)
        if clean is None:
            self.client.log_artifact(run, str(path), folder)
        else:
            self.client.log_text(run, clean, f"{folder}/{path.name}" if folder else path.name)

    def end(
        self,
        run: str,
        status: str,
        end_ms: int | None,
        reason: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Mark a run as ended.

        Args:
            run: Id of the run.
            status: MLflow status, such as FINISHED.
            end_ms: End time in milliseconds since 1970; `None` for now.
            reason: One-line reason to record as a tag; "" for none.
            tags: The run's tags; `None` to query the store.
        """
        if reason:
            self.log(run, tags={ENDED_TAG: reason})
        elif ENDED_TAG in (self.client.get_run(run).data.tags if tags is None else tags):
            self.client.delete_tag(run, ENDED_TAG)
        self.client.set_terminated(run, status, end_time=end_ms)


def without_secrets(path: Path) -> str | None:
    """The redacted content of a file; `None` if it needs no redaction.

    JSON and YAML files are parsed and their strings are redacted one by one, because a secret may
    be escaped in the file, and `***` in place of a number would be invalid. Numbers stay
    unchanged. A file that cannot be parsed is redacted as plain text.

    Args:
        path: Path of the file; text files are UTF-8.
    """
    if path.suffix not in _TEXT:
        return None
    text = path.read_text(encoding="utf-8")
    clean = redacted(text)
    if path.suffix in (".json", ".yaml"):
        with suppress(ValueError, RecursionError):
            is_json = path.suffix == ".json"
            content = json.loads(text) if is_json else load_yaml(text)
            own = redacted_inside(content)
            # Comments of YAML may hold secrets, too. Compared by repr, because NaN != NaN.
            if repr(own) == repr(content) and (is_json or clean == text):
                return None
            if is_json:
                return json.dumps(own, indent=2) + "\n"
            return yaml.safe_dump(own, sort_keys=False, allow_unicode=True)
    return clean if clean != text else None


def _clean(tags: Mapping[str, str]) -> dict[str, str]:
    """Redact tags and truncate them to the length that MLflow accepts."""
    return {key: redacted(value)[: contents.MAX_TAG] for key, value in tags.items()}


# Defaults for MLflow's variables, unless the user sets them (MLflow would retry for minutes).
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class TrackingError(OSError):
    """A run could not be uploaded; its run directory is not affected."""


def default_tracking_uri(output: Place) -> str:
    """The SQLite store in the output directory: `sqlite:///<output>/mlflow.db`.

    For runs in an object store it is the local `runs/mlflow.db`, because a database needs a disk;
    the files of its MLflow runs are in the object store.
    """
    folder = output if isinstance(output, Path) else Path("runs")
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def mlflow_client(tracking_uri: str) -> MlflowClient:
    """Create an MLflow client; imports MLflow.

    Raises:
        TrackingError: If MLflow does not support the URI.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Retrying a request whose response was lost could create a second run; whole uploads are
    # retried instead.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        return MlflowClient(tracking_uri=tracking_uri)
    except MlflowException as error:
        raise TrackingError(
            f"--tracking-uri {redacted(tracking_uri)} cannot be opened ({first_line(error)}); "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        ) from error


def is_remote(tracking_uri: str) -> bool:
    """Whether the URI is a server, which also stores the runs' files."""
    return urlparse(tracking_uri).scheme in ("http", "https")


def raise_if_wrong(tracking_uri: str) -> None:
    """Check the URI without any request, so that a job can do so before it starts.

    Raises:
        InputError: If the URI is MLflow's retired file store, or its port is invalid.
    """
    try:
        parts = urlparse(tracking_uri)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"tracking_uri {redacted(tracking_uri)!r}: {error}") from error
    if parts.scheme in ("", "file"):
        raise InputError(
            f"tracking_uri {tracking_uri!r} is MLflow's retired file store; "
            "use sqlite:///<path>/mlflow.db or the http address of a server"
        )


def raise_if_unreachable(tracking_uri: str) -> bool:
    """Send one request to a server or store.

    Returns:
        `False` for a SQLite store that does not exist yet; it is created with the first run.

    Raises:
        TrackingError: If it does not respond, or has an incompatible version of MLflow.
        InputError: If the URI is MLflow's retired file store.
    """
    raise_if_wrong(tracking_uri)
    parts = urlparse(tracking_uri)
    if parts.scheme == "sqlite" and not Path(parts.path[1:]).is_file():
        return False
    with tracking_errors():
        mlflow_client(tracking_uri).search_experiments(max_results=1)
    return True


@contextmanager
def tracking_errors() -> Iterator[None]:
    """Convert MLflow's and network errors into `TrackingError` with a one-line message.

    Raises:
        TrackingError: Instead of MLflow's exceptions and `OSError`.
    """
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, (MlflowException, OSError)):
            raise
        raise TrackingError(f"{type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error, truncated for a log."""
    return redacted((str(error).strip().splitlines() or [""])[0][:300])
