"""The MLflow runs of a run directory: created once, found again, logged in batches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from jobs.config.bounded_yaml import load_yaml
from jobs.results.facts import JOB_FILE
from jobs.tracking import shown
from pipeline.redaction import redacted, redacted_inside
from pipeline.runtime import process
from pipeline.storage.urls import is_url

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
DRIVER_TAG, DIRECTORY_TAG = "tango.driver", "tango.run_dir"
PARENT_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"
ENDED_TAG = "ended"
# Limits of MLflow's stores: characters, points per request, runs that one search gives.
_MAX_KEY, _MAX_VALUE = 250, 6000
MAX_METRICS = PAGE = 1000
# Text files that may quote a URL with a password.
_TEXT = (".yaml", ".json", ".html", ".md", ".csv")

Point = tuple[str, float, int, int]
"""Name, value, time in ms since 1970, and step of a metric."""


def nothing() -> None:
    """No progress is shown."""


class ReportingClient:
    """An MLflow client that says so after every request that came back."""

    def __init__(self, client: MlflowClient, progress: Callable[[], None]) -> None:
        self._client, self._progress = client, progress

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*given: Any, **options: Any) -> Any:
            found = method(*given, **options)
            self._progress()
            return found

        return call


@dataclass(frozen=True)
class Driver:
    """A process that drives a job.

    Attributes:
        host: Name of its machine, for people.
        machine: This start of that machine; process ids are compared only where it is the same.
        pid: Its process id.
        started: When the process started, in ticks of the kernel.
    """

    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> Self:
        """The process that calls."""
        pid = process.pid()
        return cls(process.host(), process.machine(), pid, process.started(pid))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """From the tag of a run; `None` if nobody can read it."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def to_tag(self) -> str:
        """For `read`."""
        return json.dumps(asdict(self))

    def runs_here(self) -> bool | None:
        """Whether it is still a process of this machine; `None` if it was of another one."""
        if not self.machine or self.machine != process.machine():
            return None
        return process.is_running(self.pid) and process.started(self.pid) == self.started


@dataclass(frozen=True)
class MlflowRuns:
    """Writes the MLflow runs of one run directory, in few requests.

    Attributes:
        client: For the store.
        experiment: Id of the experiment.
        run_id: Name of the run directory.
    """

    client: MlflowClient | ReportingClient
    experiment: str
    run_id: str

    def there(self) -> list[Run]:
        """The MLflow runs of this name: a run, its cells, and perhaps others' of the same name."""
        query = f"tags.`{RUN_TAG}` = '{self.run_id}'"
        found: list[Run] = []
        token = None
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
        there: Sequence[Run] | None = None,
    ) -> Run:
        """The MLflow run of a run or cell; made once, found again when logged again.

        Args:
            name: Of a new one.
            tags: With the cell, of a cell.
            started_ms: Of a new one, in milliseconds since 1970.
            there: What the store has, for many cells one after the other; `None` to look.
        """
        own = {**tags, RUN_TAG: self.run_id}
        for run in self.there() if there is None else there:
            if _is_same_run(run.data.tags, own):
                self.log(run.info.run_id, tags=own)
                return run
        made: Run = self.client.create_run(
            self.experiment, start_time=started_ms, tags=_clean(own), run_name=name
        )
        return made

    def log(
        self, run: str, *, metrics: Sequence[Point] = (), tags: Mapping[str, str] | None = None
    ) -> None:
        """Add points, which are not doubled where the store has them, and set tags.

        MLflow's client splits them into requests as large as a store takes.
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
        """Add parameters and dataset inputs that the run does not have, and points.

        MLflow never changes a parameter, so what a resumed job changed becomes a tag.
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
        there = {(one.dataset.name, one.dataset.digest) for one in known}
        new = [one for one in datasets if (one.dataset.name, one.dataset.digest) not in there]
        if new:
            self.client.log_inputs(run.info.run_id, new)

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Upload one file; the secrets in a text file are not sent, see `without_secrets`."""
        clean = without_secrets(path)
        if clean is None:
            self.client.log_artifact(run, str(path), folder)
        else:
            self.client.log_text(run, clean, f"{folder}/{path.name}" if folder else path.name)

    def replies(self, run: str, rows: pd.DataFrame) -> None:
        """The replies of one cell, as the table that MLflow's evaluation view shows.

        MLflow's own `log_table` appends to a table that is there already.
        """
        table = rows.drop(columns="cell").to_json(orient="split", index=False)
        self.client.log_text(run, table, shown.PREDICTIONS)
        mark = json.dumps([{"path": shown.PREDICTIONS, "type": "table"}])
        self.client.set_tag(run, "mlflow.loggedArtifacts", mark)

    def run_on(self, run: str, driver: str) -> None:
        """Mark a run as at work, whatever it was marked as, unless another driver has it."""
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
        """Mark a run as ended, and give a reason or none.

        Args:
            run: Its id.
            status: How it ended.
            end_ms: In milliseconds since 1970; `None` for now.
            reason: In one line; "" for none.
            tags: That it has; `None` to ask.
        """
        if reason:
            self.log(run, tags={ENDED_TAG: reason})
        elif ENDED_TAG in (self.client.get_run(run).data.tags if tags is None else tags):
            self.client.delete_tag(run, ENDED_TAG)
        self.client.set_terminated(run, status, end_time=end_ms)


def without_secrets(path: Path) -> str | None:
    """The text that is uploaded instead of a file; `None` for the file as it is.

    In JSON and YAML every text is redacted for itself, and numbers stay as they are, also where a
    secret is one: in their own spelling a secret may be escaped, and `***` in its place may be no
    value. A file that cannot be read as what its name says is redacted as text.

    Args:
        path: Of the file; text files are UTF-8.
    """
    if path.suffix not in _TEXT:
        return None
    text = path.read_text(encoding="utf-8")
    comment = clean = ""
    try:
        if path.suffix == ".json":
            held = json.loads(text)
            clean = json.dumps(redacted_inside(held), indent=2, ensure_ascii=False) + "\n"
        elif path.suffix == ".yaml":
            lines = text.splitlines(keepends=True)
            comment = "".join(takewhile(lambda line: line.startswith("#"), lines))
            held = load_yaml(text)
            clean = yaml.safe_dump(redacted_inside(held), sort_keys=False, allow_unicode=True)
        if clean:
            # By their texts: a number that is none (NaN) is equal to itself.
            if repr(redacted_inside(held)) != repr(held):
                return redacted(comment) + clean
            clean = redacted(comment) + text[len(comment) :]
    except (ValueError, RecursionError):
        pass
    clean = clean or redacted(text)
    return clean if clean != text else None


def shown_name(run_id: str) -> str:
    """The name of a run directory with its time last: lists cut long names off."""
    stamp = re.match(r"(\d{8}-\d{6})-(.+)", run_id)
    return f"{stamp[2]} {stamp[1]}" if stamp else run_id


def _is_same_run(tags: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Whether a run in the store with our directory's name is ours.

    Two jobs that start in the same second below different directories have one name. One whose
    directory has been moved is still found; one whose directory is still there is another.
    """
    if any(tags.get(name) != own.get(name) for name in (CELL_TAG, PARENT_TAG)):
        return False
    there = tags.get(DIRECTORY_TAG)
    if not there or is_url(there) or there == own.get(DIRECTORY_TAG):
        return True
    return not (Path(there) / JOB_FILE).is_file()


def _clean(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as a store takes them."""
    return {key: redacted(value)[: shown.MAX_TAG] for key, value in tags.items()}
