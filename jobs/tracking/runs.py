"""Create, find and update the MLflow runs of a run directory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from jobs.config.bounded_yaml import load_yaml
from jobs.results.facts import JOB_FILE
from pipeline.redaction import redacted, redacted_inside
from pipeline.runtime import process
from pipeline.storage.urls import is_url

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
DRIVER_TAG, DIRECTORY_TAG = "tango.driver", "tango.run_dir"
PARENT_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"
ENDED_TAG = "ended"
# Limits of MLflow's stores: characters, and runs per search page.
MAX_TAG = 5000
_MAX_KEY, _MAX_VALUE = 250, 6000
PAGE = 1000
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


def this_driver() -> str:
    """The current process, for the tag of a run: machine, its boot, process and start time."""
    pid = process.pid()
    about = {"host": process.host(), "machine": process.machine(), "pid": pid}
    return json.dumps({**about, "started": process.started(pid)})


def driver_runs(tag: str) -> bool | None:
    """Whether a driver still runs on this machine; `None` if it is on another one, or unknown."""
    try:
        driver = json.loads(tag)
        if not driver["machine"] or driver["machine"] != process.machine():
            return None
        pid = driver["pid"]
        return process.is_running(pid) and process.started(pid) == driver["started"]
    except (ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True)
class MlflowRuns:
    """Access to the MLflow runs of one run directory, in few requests.

    Attributes:
        client: Client of the MLflow store.
        experiment: Id of the experiment.
        run_id: Name of the run directory.
    """

    client: MlflowClient | ReportingClient
    experiment: str
    run_id: str

    def search(self, query: str = "") -> list[Run]:
        """MLflow runs that a query finds; without one those of this run directory and its cells.

        There may also be runs of another directory of the same name.
        """
        query = query or f"tags.`{RUN_TAG}` = '{self.run_id}'"
        found, token = list[Any](), None
        while True:
            page = self.client.search_runs(
                [self.experiment], query, max_results=PAGE, page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    def start(
        self,
        name: str,
        tags: Mapping[str, str],
        started_ms: int | None,
        existing: Sequence[Run] | None = None,
    ) -> Run:
        """Find the MLflow run of a run directory or cell, or create it.

        Args:
            name: Name, used only if the run is created.
            tags: Tags of the run; those of a cell include `CELL_TAG`.
            started_ms: Start in milliseconds since 1970, used only if the run is created.
            existing: Already fetched runs; `None` to query the store.
        """
        all_tags = {**tags, RUN_TAG: self.run_id}
        for run in self.search() if existing is None else existing:
            if _is_same_run(run.data.tags, all_tags):
                self.log(run.info.run_id, tags=all_tags)
                return run
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

        pairs, changed = [], {}
        for key, text in params.items():
            name, value = key[:_MAX_KEY], redacted(text)[:_MAX_VALUE]
            if run.data.params.get(name, value) == value:
                pairs.append(Param(name, value))
            else:  # e.g. the size of its pools
                changed[f"resumed.{name}"] = value
        self.client.log_batch(run.info.run_id, params=pairs)
        self.log(run.info.run_id, metrics=metrics, tags=changed)
        known = run.inputs.dataset_inputs if run.inputs else ()
        logged = {(one.dataset.name, one.dataset.digest) for one in known}
        new = [one for one in datasets if (one.dataset.name, one.dataset.digest) not in logged]
        if new:
            self.client.log_inputs(run.info.run_id, new)

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Upload one file; secrets in text files are redacted, see `without_secrets`."""
        clean = without_secrets(path)
        if clean is None:
            self.client.log_artifact(run, str(path), folder)
        else:
            self.client.log_text(run, clean, f"{folder}/{path.name}" if folder else path.name)

    def run_on(self, run: str, driver: str) -> None:
        """Set a run's status to RUNNING if it belongs to this driver."""
        tags = self.client.get_run(run).data.tags
        if tags.get(DRIVER_TAG) == driver:
            self.client.update_run(run, status="RUNNING")
            if ENDED_TAG in tags:
                self.client.delete_tag(run, ENDED_TAG)

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
    try:
        if path.suffix == ".json":
            held = json.loads(text)
            own = redacted_inside(held)
            # Compare by repr, because NaN != NaN.
            return None if repr(own) == repr(held) else json.dumps(own, indent=2) + "\n"
        if path.suffix == ".yaml":
            held = load_yaml(text)
            own = redacted_inside(held)
            if clean == text and repr(own) == repr(held):
                return None
            return yaml.safe_dump(own, sort_keys=False, allow_unicode=True)
    except (ValueError, RecursionError):
        pass
    return clean if clean != text else None


def shown_name(run_id: str) -> str:
    """Name of a run directory with the time moved to the end, because lists truncate names."""
    stamp = re.match(r"(\d{8}-\d{6})-(.+)", run_id)
    return f"{stamp[2]} {stamp[1]}" if stamp else run_id


def _is_same_run(tags: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Whether an MLflow run with the name of a run directory belongs to that directory.

    Two jobs that start in the same second in different output directories have the same name. A
    recorded directory that still exists elsewhere belongs to another run; if it no longer exists,
    the run directory has been moved.
    """
    if any(tags.get(name) != own.get(name) for name in (CELL_TAG, PARENT_TAG)):
        return False
    recorded = tags.get(DIRECTORY_TAG)
    if not recorded or is_url(recorded) or recorded == own.get(DIRECTORY_TAG):
        return True
    return not (Path(recorded) / JOB_FILE).is_file()


def _clean(tags: Mapping[str, str]) -> dict[str, str]:
    """Redact tags and truncate them to the length that MLflow accepts."""
    return {key: redacted(value)[:MAX_TAG] for key, value in tags.items()}
