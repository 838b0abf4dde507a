"""The MLflow runs of one run directory: made once, found again, filled in few requests."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.results.facts import JOB_FILE
from jobs.tracking.clean_files import without_secrets
from jobs.tracking.drivers import DIRECTORY_TAG
from pipeline.redaction import redacted
from pipeline.remote.urls import is_url

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

EXPERIMENT = "tango"
RUN_TAG, CELL_TAG = "tango.run_id", "tango.cell"
PARENT_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"
ENDED_TAG = "ended"
# Limits of MLflow's stores: characters, and entries per request.
MAX_TAG = 5000
_MAX_KEY, _MAX_VALUE = 250, 6000
_MAX_PARAMS, _MAX_METRICS, _MAX_TAGS = 100, 1000, 100
_PAGE = 1000  # runs that one search gives

Point = tuple[str, float, int, int]
"""Name, value, time in ms since 1970, and step of a metric."""


def nothing() -> None:
    """No progress is shown."""


@contextmanager
def _sent_once() -> Iterator[None]:
    """MLflow's client sends nothing again that failed: the server may have done it all the same.

    A second request would make a second run. Whoever tries again looks for the first one.
    """
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    chosen = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[name]
        else:
            os.environ[name] = chosen


def shown_name(run_id: str) -> str:
    """The name of a run directory with its time last: lists cut long names off."""
    stamp = re.match(r"(\d{8}-\d{6})-(.+)", run_id)
    return f"{stamp[2]} {stamp[1]}" if stamp else run_id


def _is_the_same(tags: Mapping[str, str], own: Mapping[str, str]) -> bool:
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


@dataclass(frozen=True)
class MlflowRuns:
    """Writes the MLflow runs of one run directory.

    Attributes:
        client: For the store.
        experiment: Id of the experiment.
        run_id: Name of the run directory.
        progress: Called after every request that came back.
    """

    client: MlflowClient
    experiment: str
    run_id: str
    progress: Callable[[], None] = nothing

    def there(self) -> list[Run]:
        """The MLflow runs of this name: a run, its cells, and perhaps others' of the same name.

        They come with all their numbers, so that looking once per cell takes longer than the rest.
        """
        query = f"tags.`{RUN_TAG}` = '{self.run_id}'"
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment], query, max_results=_PAGE, page_token=token
            )
            self.progress()
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
    ) -> str:
        """Id of the MLflow run of a run or cell; made once, found again when logged again.

        Args:
            name: Of a new one.
            tags: With the cell, of a cell.
            started_ms: Of a new one, in milliseconds since 1970.
            there: What the store has, for many cells one after the other; `None` to look.
        """
        own = self._clean({**tags, RUN_TAG: self.run_id})
        for run in self.there() if there is None else there:
            if _is_the_same(run.data.tags, own):
                self.tags(run.info.run_id, own)
                return str(run.info.run_id)
        with _sent_once():
            run = self.client.create_run(
                self.experiment, start_time=started_ms, tags=own, run_name=name
            )
        self.progress()
        return str(run.info.run_id)

    def tags(self, run: str, tags: Mapping[str, str]) -> None:
        """Set tags; what is there under the same names is replaced."""
        from mlflow.entities import RunTag

        values = [RunTag(key[:_MAX_KEY], value) for key, value in self._clean(tags).items()]
        for start in range(0, len(values), _MAX_TAGS):
            self.client.log_batch(run, tags=values[start : start + _MAX_TAGS])
            self.progress()

    def params(self, run: str, params: Mapping[str, str]) -> None:
        """Parameters; MLflow never changes one, so what a resumed job changed becomes a tag."""
        from mlflow.entities import Param

        logged = self.client.get_run(run).data.params
        self.progress()
        pairs, changed = [], {}
        for key, text in params.items():
            name, value = key[:_MAX_KEY], redacted(text)[:_MAX_VALUE]
            if logged.get(name, value) == value:
                pairs.append(Param(name, value))
            else:  # e.g. the size of its pools
                changed[f"resumed.{name}"] = value
        for start in range(0, len(pairs), _MAX_PARAMS):
            self.client.log_batch(run, params=pairs[start : start + _MAX_PARAMS])
            self.progress()
        self.tags(run, changed)

    def metrics(self, run: str, points: Sequence[Point]) -> None:
        """Points of metrics; a point that the store has already is not doubled."""
        from mlflow.entities import Metric

        values = [Metric(key[:_MAX_KEY], float(value), *when) for key, value, *when in points]
        for start in range(0, len(values), _MAX_METRICS):
            self.client.log_batch(run, metrics=values[start : start + _MAX_METRICS])
            self.progress()

    def inputs(self, run: str, datasets: Sequence[DatasetInput]) -> None:
        """Dataset inputs that the run does not have yet."""
        there = {
            (one.dataset.name, one.dataset.digest)
            for one in self.client.get_run(run).inputs.dataset_inputs
        }
        new = [one for one in datasets if (one.dataset.name, one.dataset.digest) not in there]
        if new:
            self.client.log_inputs(run, new)
        self.progress()

    def file(self, run: str, path: Path, folder: str | None = None) -> None:
        """Upload one file; the secrets in a text file are not sent, see `clean_files.py`."""
        clean = without_secrets(path)
        if clean is None:
            self.client.log_artifact(run, str(path), folder)
        else:
            self.client.log_text(run, clean, f"{folder}/{path.name}" if folder else path.name)
        self.progress()

    def run_on(self, run: str) -> None:
        """Mark a run as at work, whatever was said of its end before."""
        self._why(run, "")
        self.client.update_run(run, status="RUNNING")
        self.progress()

    def end(self, run: str, status: str, end_ms: int | None, reason: str = "") -> None:
        """Mark a run as ended, at `None` by the store's clock, and say why or nothing."""
        self._why(run, reason)
        self.client.set_terminated(run, status, end_time=end_ms)
        self.progress()

    def _why(self, run: str, reason: str) -> None:
        """Replace the reason of an end; without one, that of an earlier end goes."""
        if reason:
            self.tags(run, {ENDED_TAG: reason})
        elif ENDED_TAG in self.client.get_run(run).data.tags:
            self.client.delete_tag(run, ENDED_TAG)
            self.progress()

    @staticmethod
    def _clean(tags: Mapping[str, str]) -> dict[str, str]:
        """Tags as a store takes them."""
        return {key: redacted(value)[:MAX_TAG] for key, value in tags.items()}
