"""The MLflow runs of a run directory: find, create and end them, and upload results.

Uploads read only the run directory and can be repeated: MLflow drops duplicate points, and MLflow
runs are found by the name of the directory.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlparse

import yaml

from jobs.config.overrides import load_yaml
from jobs.results.cell_summary import RunSummary, parse_summary
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, JOB_FILE, JobFacts
from jobs.results.summary import SUMMARY_FILE
from jobs.tracking import contents
from pipeline.redaction import redacted, redacted_inside
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage, copies
from pipeline.storage.leases import Lease
from pipeline.storage.urls import Place, is_url, place
from tango_core.errors import InputError, MissingFileError, UserError
from tango_core.local_files import parse_json

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
DIRECTORY_TAG = "tango.run_dir"
PARENT_TAG = "mlflow.parentRunId"
ENDED_TAG = "ended"
EXPERIMENT = "tango"
DIED = "the driver died before it could record an end"
# Limits of MLflow's stores: characters of a key, a parameter and a tag, and runs of one search.
_MAX_KEY, _MAX_VALUE, _MAX_TAG = 250, 6000, 5000
_MAX_RUNS = 10_000
# Files of a run directory that are uploaded: folder and pattern.
_FILES = (
    *(("", name) for name in (JOB_FILE, FACTS_FILE, SUMMARY_FILE, "report.html", FAILURES_FILE)),
    *(("answers", "*"), ("plots", "*")),
)
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
        return cls(client, str(found.experiment_id), home)

    def begin(self, recipe: Mapping[str, Any], command: str, num_clips: int) -> str:
        """Find or create the MLflow run of a job that starts; returns its id."""
        tags = contents.job_tags(command, recipe["model"]["name"]) | {"num_clips": str(num_clips)}
        run = self.start(tags, int(1000 * time.time()))
        run_id = str(run.info.run_id)
        self.settings(run, contents.flatten(recipe))
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

    def find(self, tags: Mapping[str, str]) -> Run | None:
        """The MLflow run of the run directory, or of the cell that `tags` name.

        Two jobs that start in the same second in different output directories have the same name. A
        recorded directory that still exists elsewhere belongs to another run; if it no longer
        exists, the run directory has been moved.
        """
        for run in self.search():
            found = run.data.tags
            if all(found.get(name) == tags.get(name) for name in (CELL_TAG, PARENT_TAG)):
                recorded = found.get(DIRECTORY_TAG, "")
                is_elsewhere = recorded != str(self.home) and not is_url(recorded)
                if not (recorded and is_elsewhere and (Path(recorded) / JOB_FILE).is_file()):
                    return run
        return None

    def start(
        self, tags: Mapping[str, str], started_ms: int | None, name: str | None = None
    ) -> Run:
        """Find the MLflow run of a run directory or cell, or create it.

        Args:
            tags: Tags of the run; those of a cell include `CELL_TAG`.
            started_ms: Start in milliseconds since 1970, used only if the run is created.
            name: Name of a created run; `None` for the name of the directory with the time moved
                to the end, because lists truncate names.
        """
        all_tags = {**tags, RUN_TAG: self.home.name, DIRECTORY_TAG: str(self.home)}
        if run := self.find(all_tags):
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

    def settings(self, run: Run, params: Mapping[str, str], metrics: Sequence[Point] = ()) -> None:
        """Log parameters that the run does not have yet, and metric points.

        MLflow parameters cannot be changed; those of a resumed job keep their first value.
        """
        from mlflow.entities import Param

        kept = {key[:_MAX_KEY]: redacted(text)[:_MAX_VALUE] for key, text in params.items()}
        new = [Param(*pair) for pair in kept.items() if pair[0] not in run.data.params]
        self.client.log_batch(run.info.run_id, params=new)
        self.log(run.info.run_id, metrics=metrics)

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Upload one file; secrets in text files are redacted, see `without_secrets`."""
        clean = without_secrets(path)
        if clean is None:
            self.client.log_artifact(run, str(path), folder)
        else:
            self.client.log_text(run, clean, f"{folder}/{path.name}" if folder else path.name)

    def end(self, run: str, status: str, end_ms: int | None, reason: str = "") -> None:
        """Mark a run as ended.

        Args:
            run: Id of the run.
            status: MLflow status, such as FINISHED.
            end_ms: End time in milliseconds since 1970; `None` for now.
            reason: One-line reason to record as a tag; "" for none.
        """
        if reason:
            self.log(run, tags={ENDED_TAG: reason})
        elif ENDED_TAG in self.client.get_run(run).data.tags:
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
    return {key: redacted(value)[:_MAX_TAG] for key, value in tags.items()}


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


def log_run(run_dir: Path, tracking_uri: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> str:
    """Upload the results of a run directory; repeating it updates the same MLflow runs.

    A run with one cell becomes one MLflow run; a run with several cells becomes a parent with one
    child per cell. All files belong to the parent. The MLflow run of a job without results is
    marked KILLED if its driver is dead.

    Args:
        run_dir: Run directory with `facts.json` and `summary.json`, and with `job.yaml` unless it
            was imported; or the directory of a killed job.
        tracking_uri: MLflow server or store; `None` for the SQLite store next to the run.
        clock: Clock for the age of the lease.

    Returns:
        The id of the MLflow run (of the parent).

    Raises:
        FileNotFoundError: If the directory is not a run, or has no results and no MLflow run.
        TrackingError: If the store cannot be reached or refuses the run.
        InputError: If the URI is MLflow's retired file store, or a file of the run is damaged.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    raise_if_wrong(uri)
    home = copies.home_of(run_dir.absolute())
    unfinished = (run_dir / JOB_FILE).is_file() and not (run_dir / FACTS_FILE).is_file()
    results = None if unfinished else Results(run_dir)
    with tracking_errors():
        store = MlflowRuns.connect(uri, home)
        if results is not None:
            return results.upload(store)
        if run := store.find({}):
            dead = Lease(Storage.at(home), clock).living() is None
            if run.info.status == "RUNNING" and dead:
                store.end(run.info.run_id, "KILLED", None, DIED)
            return str(run.info.run_id)
    raise MissingFileError(f"{home} has no results yet; continue the job with --continue")


class Results:
    """Results of a finished run, loaded before the upload starts.

    Args:
        run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.facts = run_dir, JobFacts.load(run_dir)
        path = run_dir / JOB_FILE
        self.recipe = load_yaml(path.read_bytes()) if path.is_file() else {}  # {} if imported
        if not (run_dir / SUMMARY_FILE).is_file():
            raise MissingFileError(
                f"{run_dir} has no {SUMMARY_FILE}; write it with `tango report {run_dir}`, "
                "or run `tango precompute` again if it only filled caches"
            )
        content = (run_dir / SUMMARY_FILE).read_bytes()
        self.summary: RunSummary | None = None
        if self.facts.kind == "precompute":  # it has counts instead of cells
            counts = parse_json(content.decode(), SUMMARY_FILE)
            self.metrics = {
                name.removeprefix("num_"): float(value)
                for name, value in counts.items()
                if name.startswith("num_") and isinstance(value, (int, float))
            }
        else:
            self.summary = summary = parse_summary(content, run_dir)
            only = summary.cells[0] if len(summary.cells) == 1 else None
            self.metrics = contents.cell_metrics(only) if only else {}
            self.metrics |= contents.run_metrics(summary)
        self._now_ms = self._ended_ms = int(1000 * time.time())
        self._started_ms = None
        if started := self.facts.started_at:
            self._started_ms = round(1000 * datetime.fromisoformat(started).timestamp())
            if self.facts.wall_s:
                self._ended_ms = self._started_ms + round(1000 * self.facts.wall_s)

    def upload(self, store: MlflowRuns) -> str:
        """Upload metrics, then files; returns the id of the parent run."""
        facts, summary = self.facts, self.summary
        only = facts.cells[0] if len(facts.cells) == 1 else None
        tags, params = contents.tags_of(facts, only), contents.flatten(self.recipe)
        params |= {f"version.{name}": version for name, version in facts.versions.items()}
        params |= {f"float32.{name}": value for name, value in facts.float32_products.items()}
        if summary is not None and (not self.recipe or only is not None):
            params = {**contents.cell_params(summary.cells[0], facts), **params}
        run = store.start(tags, self._started_ms)
        parent = str(run.info.run_id)
        # At the last live step, because the UI shows the value with the largest step.
        step = int(run.data.tags.get("num_clips") or 0)
        points = [(name, value, self._now_ms, step) for name, value in self.metrics.items()]
        if summary is not None and len(summary.cells) > 1:
            series = contents.series_points(summary)
            # Equal points are stored once, so that a repeated upload changes no curve.
            when = self._started_ms or self._now_ms
            # First, as the UI lists metrics in this order.
            points[:0] = [(name, value, when, at) for name, value, at in series]
        store.settings(run, params, points)
        if summary is not None and len(summary.cells) > 1:
            self._upload_cells(store, summary, parent)
        for folder, name in _FILES:
            for path in sorted((self.run_dir / folder).glob(name)):
                if path.is_file():
                    store.file(parent, path, folder or None)
        store.end(parent, "FINISHED", self._ended_ms)
        return parent

    def _upload_cells(self, store: MlflowRuns, summary: RunSummary, parent: str) -> None:
        """Upload every cell of a sweep as a child run."""
        for facts, cell in zip(self.facts.cells, summary.cells, strict=True):
            name = f"{cell.benchmark}: {cell.name}"
            tags = {
                **contents.tags_of(self.facts, facts),
                CELL_TAG: name,
                PARENT_TAG: parent,
            }
            run = store.start(tags, self._started_ms, name)
            metrics = contents.cell_metrics(cell)
            points = [(key, value, self._now_ms, 0) for key, value in metrics.items()]
            store.settings(run, contents.cell_params(cell, self.facts), points)
            store.end(run.info.run_id, "FINISHED", self._ended_ms)
