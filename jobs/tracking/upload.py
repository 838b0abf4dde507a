"""Upload the results of a run directory to MLflow.

Uploads read only the run directory and can be repeated: MLflow drops duplicate points, and MLflow
runs are found by the name of the directory.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.config.overrides import load_yaml
from jobs.results.cell_summary import RunSummary, parse_summary
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, JOB_FILE, JobFacts
from jobs.results.summary import SUMMARY_FILE
from jobs.tracking import contents, runs
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage import Storage, copies, leases
from tango_core.errors import MissingFileError
from tango_core.local_files import parse_json

if TYPE_CHECKING:
    from mlflow.entities import Run

_FILES = (JOB_FILE, FACTS_FILE, SUMMARY_FILE, "report.html", FAILURES_FILE)


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
    uri = tracking_uri or runs.default_tracking_uri(run_dir.parent)
    runs.raise_if_wrong(uri)
    home = copies.home_of(run_dir.absolute())
    unfinished = (run_dir / JOB_FILE).is_file() and not (run_dir / FACTS_FILE).is_file()
    results = None if unfinished else Results(run_dir)
    with runs.tracking_errors():
        store = runs.MlflowRuns.connect(uri, home)
        if results is not None:
            return results.upload(store)
        if run := store.find({}):
            dead = leases.Lease(Storage.at(home), clock).living() is None
            if run.info.status == "RUNNING" and dead:
                store.end(run.info.run_id, "KILLED", None, runs.DIED)
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
            self.summary = parse_summary(content, run_dir)
            self.metrics = contents.parent_metrics(self.summary)
        self._now_ms = self._ended_ms = int(1000 * time.time())
        self._started_ms = None
        if started := self.facts.started_at:
            self._started_ms = round(1000 * datetime.fromisoformat(started).timestamp())
            if self.facts.wall_s:
                self._ended_ms = self._started_ms + round(1000 * self.facts.wall_s)

    def upload(self, store: runs.MlflowRuns) -> str:
        """Upload metrics, then files; returns the id of the parent run."""
        facts, summary = self.facts, self.summary
        only = facts.cells[0] if len(facts.cells) == 1 else None
        tags, params = contents.tags_of(facts, only), contents.flatten(self.recipe)
        params |= {f"version.{name}": version for name, version in facts.versions.items()}
        params |= {f"float32.{name}": value for name, value in facts.float32_products.items()}
        if summary is not None:
            tags[runs.NOTE_TAG] = contents.describe(facts, summary.cells)
            if not self.recipe or only is not None:
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
            # Behind the score of all answers, as the UI lists metrics in this order.
            points[1:1] = [(name, value, when, at) for name, value, at in series]
        store.settings(run, params, contents.datasets_of(self.recipe), points)
        if summary is not None:
            self._upload_cells(store, summary, run)
        for folder, names in (("", _FILES), ("answers", ("*",)), ("plots", ("*",))):
            for name in names:
                for path in sorted((self.run_dir / folder).glob(name)):
                    if path.is_file():
                        store.file(parent, path, folder or None)
        store.end(parent, "FINISHED", self._ended_ms)
        return parent

    def _upload_cells(self, store: runs.MlflowRuns, summary: RunSummary, parent: Run) -> None:
        """Upload every cell of a sweep as a child run, and the replies of every cell as a table."""
        replies = contents.read_replies(self.run_dir)
        several = len(summary.cells) > 1
        existing = store.search() if several else []
        for facts, cell in zip(self.facts.cells, summary.cells, strict=True):
            run = parent
            if several:
                name = f"{cell.benchmark}: {cell.name}"
                tags = {
                    **contents.tags_of(self.facts, facts),
                    runs.CELL_TAG: name,
                    runs.PARENT_TAG: str(parent.info.run_id),
                    runs.NOTE_TAG: contents.describe(self.facts, [cell]),
                }
                run = store.start(tags, self._started_ms, name, existing)
                metrics = contents.cell_metrics(cell)
                points = [(key, v, self._now_ms, 0) for key, v in metrics.items()]
                datasets = contents.datasets_of(self.recipe, cell.benchmark)
                store.settings(run, contents.cell_params(cell, self.facts), datasets, points)
            if replies is not None:
                own = replies[
                    (replies["benchmark"] == cell.benchmark) & (replies["cell"] == cell.name)
                ].drop(columns="cell")
                # MLflow's own `log_table` would append to an existing table.
                table = own.to_json(orient="split", index=False)
                store.client.log_text(run.info.run_id, table, contents.PREDICTIONS)
                store.client.set_tag(run.info.run_id, "mlflow.loggedArtifacts", contents.TABLE_MARK)
            if several:
                store.end(run.info.run_id, "FINISHED", self._ended_ms, tags=run.data.tags)
