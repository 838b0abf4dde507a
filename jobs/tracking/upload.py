"""Upload a run directory to MLflow: recorded events, and results.

Uploads read only the run directory and can be repeated: MLflow drops duplicate points, and MLflow
runs are found by the name of the directory. The same code is used while a job runs, at its end, and
by `tango log-run`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.config.bounded_yaml import load_yaml
from jobs.results.cell_summary import RunSummary
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, JOB_FILE, JobFacts
from jobs.results.summary import SUMMARY_FILE
from jobs.tracking import shown
from jobs.tracking.events import EVENTS_FILE, Event, last_steps, read_events
from jobs.tracking.runs import (
    CELL_TAG,
    DIRECTORY_TAG,
    DRIVER_TAG,
    NOTE_TAG,
    PARENT_TAG,
    MlflowRuns,
    Point,
    ReportingClient,
    driver_runs,
    shown_name,
    this_driver,
)
from jobs.tracking.server import (
    TrackingError,
    default_tracking_uri,
    is_remote,
    mlflow_client,
    raise_if_wrong,
    tracking_errors,
)
from pipeline.redaction import redacted_inside
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage
from pipeline.storage.copies import home_of
from pipeline.storage.leases import Lease
from tango_core.errors import InputError, MissingFileError
from tango_core.local_files import parse_json, read_text

if TYPE_CHECKING:
    from mlflow.entities import Run

EXPERIMENT = "tango"
_DIED = "the driver died before it could record an end"
# Points that are sent at once.
_POINTS = 1000
# Pauses in seconds before retries, if a server has responded before.
_RETRY_PAUSES_S = (2.0, 5.0, 10.0)
_FILES = (JOB_FILE, FACTS_FILE, SUMMARY_FILE, "report.html", FAILURES_FILE)
_FOLDERS = ("answers", "plots")


class RunUpload:
    """Uploads one run to one store; every step can be repeated.

    Args:
        run_dir: The run directory, or a local copy of it.
        tracking_uri: MLflow server or store.
        clock: Clock for the dates of metrics.
        progress: Called after every completed request.
        runs: Access to the MLflow runs; `None` to connect with the first upload.

    Attributes:
        run: Id of the MLflow run; empty until it is created.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str,
        clock: Clock = SYSTEM_CLOCK,
        progress: Callable[[], None] = lambda: None,
        runs: MlflowRuns | None = None,
    ) -> None:
        self._run_dir, self._uri = run_dir, tracking_uri
        self._clock, self._progress, self._runs = clock, progress, runs
        self._home = home_of(run_dir.absolute())
        self.run, self._offset = "", 0
        self._state: Event = {}  # the last start or end
        self._last_ms: int | None = None

    @property
    def runs(self) -> MlflowRuns:
        """Access to the MLflow runs; the first use connects to the store."""
        if self._runs is None:
            client = ReportingClient(mlflow_client(self._uri), self._progress)
            found = client.get_experiment_by_name(EXPERIMENT)
            if found is None:
                root = self._home.parent / "mlartifacts"  # a server has a place of its own
                place = root.absolute().as_uri() if isinstance(root, Path) else str(root)
                experiment = client.create_experiment(
                    EXPERIMENT, artifact_location=None if is_remote(self._uri) else place
                )
            else:
                experiment = found.experiment_id
            self._runs = MlflowRuns(client, str(experiment), self._run_dir.name)
        return self._runs

    def events(self) -> str:
        """Upload new events of the job; returns the id of its MLflow run.

        Raises:
            TrackingError: If the store is unavailable or refuses them.
        """
        with tracking_errors():
            runs, points, before = self.runs, list[Point](), self._state
            reached = self._offset
            for event, reached in read_events(self._run_dir / EVENTS_FILE, self._offset):
                self._last_ms, kind = int(event["time"]), event.get("kind")
                if kind == "sample":
                    when = self._last_ms, int(event.get("step", 0))
                    points += [(key, value, *when) for key, value in event["metrics"].items()]
                elif kind in ("start", "end"):
                    if kind == "start":
                        self._start(event)
                    self._state = event
                if self.run and len(points) >= _POINTS:
                    runs.log(self.run, metrics=points)
                    points, self._offset = [], reached
            if self.run and points:
                runs.log(self.run, metrics=points)
            if self.run and self._state is not before:
                self._show_state()
            self._offset = reached
            return self.run

    def _start(self, event: Event) -> None:
        """Create or find the MLflow run."""
        job = read_job(self._run_dir)
        tags = {
            **shown.job_tags(job, str(event.get("command", ""))),
            DRIVER_TAG: str(event.get("driver", "")),
            DIRECTORY_TAG: str(event.get("directory", "")),
            "num_clips": str(event.get("num_clips", "")),
        }
        note = (
            f"`tango {tags.get('kind', '')}` of **{tags.get('model')}** "
            f"on {tags.get('benchmark')}, {tags['num_clips']} clips. It has no results yet."
        )
        name = shown_name(self._run_dir.name)
        run = self.runs.start(name, {**tags, NOTE_TAG: note}, int(event["time"]))
        self.run = str(run.info.run_id)
        if job is not None:
            self.runs.settings(run, shown.flatten(job), shown.datasets_of(job))

    def _show_state(self) -> None:
        """Set the status of the MLflow run from the last start or end event."""
        event = self._state
        if event["kind"] == "start":
            self.runs.run_on(self.run, str(event.get("driver", "")))
        else:
            reason = str(event.get("reason", ""))
            self.runs.end(self.run, str(event["status"]), int(event["time"]), reason)

    def end_dead_runs(self) -> None:
        """End MLflow runs with status RUNNING whose driver on this machine is dead.

        They become FINISHED if their results are on disk, else KILLED; `tango log-run` uploads
        missing results.
        """
        with tracking_errors():
            for run in self.runs.search("attributes.status = 'RUNNING'"):
                if driver_runs(run.data.tags.get(DRIVER_TAG, "")) is False:
                    folder = Path(run.data.tags.get(DIRECTORY_TAG, ""))
                    complete = (folder / FACTS_FILE).is_file()
                    status, reason = ("FINISHED", "") if complete else ("KILLED", _DIED)
                    self.runs.end(str(run.info.run_id), status, None, reason)

    def _end_if_dead(self) -> None:
        """Mark a run without results as KILLED, unless its driver still runs on any machine."""
        driver = str(self._state.get("driver", ""))
        if self._state.get("kind") != "start" or not driver or driver_runs(driver):
            return
        if Lease(Storage.at(self._home), self._clock).living() is None:
            self.runs.end(self.run, "KILLED", self._last_ms, _DIED)

    def everything(self) -> str:
        """Upload remaining events and all results; returns the id of the MLflow run.

        Uploads are retried if the server fails temporarily, but not if it has never responded.

        Raises:
            FileNotFoundError: If the directory is not a run, or has neither results nor events.
            TrackingError: If the store is unavailable or refuses the run.
            InputError: If a file of the run is damaged.
        """
        has_events = (self._run_dir / EVENTS_FILE).is_file()
        only_events = has_events and not (self._run_dir / FACTS_FILE).is_file()
        results = None if only_events else Results(self._run_dir, self._clock)
        pauses = iter(_RETRY_PAUSES_S)
        while True:
            try:
                with tracking_errors():
                    self.events()
                    if results is not None:
                        return results.upload(self.runs)
                    self._end_if_dead()
                    return self.run
            except TrackingError:
                pause_s = next(pauses, None) if self._runs else None
                if pause_s is None:
                    raise
                time.sleep(pause_s)


def log_run(run_dir: Path, tracking_uri: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> str:
    """Upload a run directory; repeating it updates the same MLflow runs.

    Events that the store has not received are uploaded first, then the results. A run with one
    cell becomes one MLflow run; a run with several cells becomes a parent with one child per cell.
    All files belong to the parent. For an unfinished run only events are uploaded, and it is marked
    KILLED if its driver is dead.

    Args:
        run_dir: Run directory with `facts.json` and `summary.json`, or with the events of a killed
            job, and with `job.yaml` unless it was imported.
        tracking_uri: MLflow server or store; `None` for the SQLite store next to the run.
        clock: Clock for the dates of metrics.

    Returns:
        The id of the MLflow run (of the parent).

    Raises:
        FileNotFoundError: If the directory is not a run, or has neither results nor events.
        TrackingError: If the store cannot be reached or refuses the run.
        InputError: If the URI is MLflow's retired file store, or a file of the run is damaged.
    """
    uri = tracking_uri or default_tracking_uri(run_dir.parent)
    raise_if_wrong(uri)
    return RunUpload(run_dir, uri, clock).everything()


class Results:
    """Results of a finished run, loaded before the upload starts.

    Args:
        run_dir: The run directory.
        clock: Clock for the dates of metrics.
    """

    def __init__(self, run_dir: Path, clock: Clock) -> None:
        self.run_dir, self.facts, self.job = run_dir, JobFacts.load(run_dir), read_job(run_dir)
        # A job that only fills caches has counts instead of cells.
        fills = self.facts.kind == "precompute"
        self.counts = _summary_file(run_dir) if fills else {}
        self.summary = None if fills else read_summary(run_dir)
        self._now_ms = self._ended_ms = int(1000 * clock.now().timestamp())
        self._started_ms = None
        if started := self.facts.started_at:
            self._started_ms = round(1000 * datetime.fromisoformat(started).timestamp())
            if self.facts.wall_s:
                self._ended_ms = self._started_ms + round(1000 * self.facts.wall_s)
        home = str(home_of(run_dir.absolute()))
        self._alive = {DRIVER_TAG: this_driver(), DIRECTORY_TAG: home}

    def upload(self, runs: MlflowRuns) -> str:
        """Upload metrics, then files; returns the id of the parent run."""
        facts, summary, job = self.facts, self.summary, self.job
        tags = {**shown.tags_of(facts), **self._alive}
        params = {} if job is None else shown.flatten(job)
        metrics = shown.precompute_metrics(self.counts)
        if summary is not None:
            tags |= {NOTE_TAG: shown.describe(facts, summary)}
            metrics = shown.parent_metrics(summary)
            if len(summary.cells) == 1:
                tags |= {"retention": f"{facts.cells[0].retention:g}"}
            if job is None or len(summary.cells) == 1:
                params = {**shown.cell_params(summary.cells[0], facts), **params}
        run = runs.start(shown_name(facts.run_id), tags, self._started_ms)
        parent = str(run.info.run_id)
        # Use the last live step, because the UI shows the value with the largest step.
        steps = last_steps(self.run_dir)
        points = [(name, v, self._now_ms, steps.get(name, 0)) for name, v in metrics.items()]
        runs.settings(run, params, shown.datasets_of(job), points)
        if summary is not None:
            self._upload_cells(runs, summary, run)
        self._upload_files(runs, parent)
        runs.end(parent, "FINISHED", self._ended_ms)
        return parent

    def _upload_cells(self, runs: MlflowRuns, summary: RunSummary, parent: Run) -> None:
        """Upload every cell of a sweep as a child run, and the replies of every cell as a table."""
        replies = shown.read_replies(self.run_dir)
        several = len(summary.cells) > 1
        existing = runs.search() if several else []
        for facts, cell in zip(self.facts.cells, summary.cells, strict=True):
            run = parent
            if several:
                name = f"{cell.benchmark}: {cell.name}"
                tags = {
                    **shown.cell_tags(facts, self.facts),
                    **self._alive,
                    CELL_TAG: name,
                    PARENT_TAG: str(parent.info.run_id),
                    NOTE_TAG: shown.describe_cell(cell, self.facts),
                }
                run = runs.start(name, tags, self._started_ms, existing)
                metrics = shown.cell_metrics(cell)
                points = [(key, v, self._now_ms, 0) for key, v in metrics.items()]
                datasets = shown.datasets_of(self.job, cell.benchmark)
                runs.settings(run, shown.cell_params(cell, self.facts), datasets, points)
                content = redacted_inside(cell.to_json())
                runs.client.log_dict(run.info.run_id, content, SUMMARY_FILE)
            if replies is not None:
                own = replies[
                    (replies["benchmark"] == cell.benchmark) & (replies["cell"] == cell.name)
                ].drop(columns="cell")
                # MLflow's own `log_table` would append to an existing table.
                table = own.to_json(orient="split", index=False)
                runs.client.log_text(run.info.run_id, table, shown.PREDICTIONS)
                runs.client.set_tag(run.info.run_id, "mlflow.loggedArtifacts", shown.TABLE_MARK)
            if several:
                runs.end(run.info.run_id, "FINISHED", self._ended_ms, tags=run.data.tags)

    def _upload_files(self, runs: MlflowRuns, parent: str) -> None:
        """Upload all files, and the plots at half size for the description of the run.

        MLflow's image charts are not used, because they show all parameters above each image.
        """
        from PIL import Image

        for name in _FILES:
            if (self.run_dir / name).is_file():
                runs.file(parent, self.run_dir / name)
        for folder in _FOLDERS:
            for path in sorted((self.run_dir / folder).glob("*")):
                if path.is_file():
                    runs.file(parent, path, folder)
        plots = sorted((self.run_dir / "plots").glob("*.png"))
        with tempfile.TemporaryDirectory(prefix="tango-figures-") as aside:
            for path in plots:
                with Image.open(path) as plot:
                    plot.reduce(2).save(Path(aside) / path.name)
                runs.file(parent, Path(aside) / path.name, shown.FIGURES)
        if plots and self.summary is not None:
            text = shown.describe(self.facts, self.summary)
            note = shown.with_pictures(text, parent, [path.name for path in plots])
            runs.log(parent, tags={NOTE_TAG: note})


def read_job(run_dir: Path) -> object | None:
    """Parse the resolved recipe of a run; `None` for an imported run."""
    path = run_dir / JOB_FILE
    return load_yaml(path.read_bytes()) if path.is_file() else None


def read_summary(run_dir: Path) -> RunSummary:
    """Load the summary of a run.

    Raises:
        MissingFileError: If the run has no summary.
        InputError: If its summary is damaged.
    """
    try:
        return RunSummary.from_json(_summary_file(run_dir))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run_dir / SUMMARY_FILE} is damaged ({type(error).__name__}: {error}); "
            f"write it again with `tango report {run_dir}`"
        ) from error


def _summary_file(run_dir: Path) -> dict[str, Any]:
    path = run_dir / SUMMARY_FILE
    if not path.is_file():
        raise MissingFileError(
            f"{run_dir} has no {SUMMARY_FILE}; write it with `tango report {run_dir}`, "
            "or run `tango precompute` again if it only filled caches"
        )
    found: dict[str, Any] = parse_json(read_text(path), path.name)
    return found
