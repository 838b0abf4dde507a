"""The results of a finished run as MLflow runs: first numbers, then files."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.results.facts import JobFacts
from jobs.results.run_summary import RunSummary
from jobs.results.summary import SUMMARY_FILE
from jobs.tracking.datasets import datasets_of
from jobs.tracking.description import FIGURES, describe, describe_cell, with_pictures
from jobs.tracking.drivers import DIRECTORY_TAG, DRIVER_TAG, HEARTBEAT_TAG, Driver
from jobs.tracking.mlflow_runs import (
    CELL_TAG,
    NOTE_TAG,
    PARENT_TAG,
    MlflowRuns,
    Point,
    shown_name,
)
from jobs.tracking.predictions import log_predictions, read_predictions
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.spool import last_steps
from jobs.tracking.values import (
    cell_metrics,
    cell_params,
    cell_tags,
    flatten,
    parent_metrics,
    precompute_metrics,
    tags_of,
)
from pipeline.clock import Clock
from pipeline.redaction import redacted_inside

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import DatasetInput


class Results:
    """What is read of a finished run before anything is sent."""

    def __init__(self, files: RunDirectory) -> None:
        self.facts: JobFacts = files.facts()
        self.job = files.job()
        # A job that only fills caches has counts in place of cells.
        filled = self.facts.kind == "precompute"
        self.counts = files.counts() if filled else None
        self.summary: RunSummary | None = None if filled else files.summary()


class ResultsUpload:
    """The results of a finished run, as MLflow runs.

    Args:
        runs: Writes the MLflow runs.
        files: The run directory.
        results: What was read of it.
        clock: Gives the time at which metrics are logged.
    """

    def __init__(
        self, runs: MlflowRuns, files: RunDirectory, results: Results, clock: Clock
    ) -> None:
        self.runs, self.files, self.results, self.facts = runs, files, results, results.facts
        self.parent = ""
        self.now_ms = int(clock.now().timestamp() * 1000)
        self.steps = last_steps(files.path)
        self.alive = {
            DRIVER_TAG: Driver.this().to_tag(),
            DIRECTORY_TAG: str(files.home()),
            HEARTBEAT_TAG: clock.now().astimezone(UTC).isoformat(timespec="seconds"),
        }

    def everything(self) -> str:
        """Numbers, unless they are there, then files; returns the id of the parent."""
        if not self.parent:
            self.numbers()
        self._files(self.parent)
        self.runs.end(self.parent, "FINISHED", self._ended_ms())
        return self.parent

    def numbers(self) -> None:
        """Parameters, metrics and replies: all that needs no report."""
        facts, summary, job = self.facts, self.results.summary, self.results.job
        tags = {**tags_of(facts), **self.alive}
        if summary is not None:
            tags |= {NOTE_TAG: describe(facts, summary)}
            if len(summary.cells) == 1:
                tags |= {"retention": f"{facts.cells[0].retention:g}"}
        parent = self.runs.start(shown_name(facts.run_id), tags, self._started_ms())
        params = {} if job is None else flatten(job)
        if summary is not None:
            if job is None or len(summary.cells) == 1:
                params = {**cell_params(summary.cells[0], facts), **params}
            metrics = parent_metrics(summary)
        else:
            metrics = precompute_metrics(self.results.counts or {})
        self.runs.params(parent, params)
        self.runs.metrics(parent, self._points(metrics))
        self.runs.inputs(parent, datasets_of(job))
        predictions = read_predictions(self.files.path)
        if summary is not None:
            self._cells(summary, parent, predictions)
        self.parent = parent

    def _cells(self, summary: RunSummary, parent: str, predictions: pd.DataFrame | None) -> None:
        """Every cell of a sweep as a child; the replies of every cell as a table."""
        several = len(summary.cells) > 1
        there = self.runs.there() if several else []
        for facts, cell in zip(self.facts.cells, summary.cells, strict=True):
            run = parent
            if several:
                name = f"{cell.benchmark}: {cell.name}"
                tags = {
                    **cell_tags(facts, self.facts),
                    **self.alive,
                    CELL_TAG: name,
                    PARENT_TAG: parent,
                    NOTE_TAG: describe_cell(cell, self.facts),
                }
                run = self.runs.start(name, tags, self._started_ms(), there)
                self.runs.params(run, cell_params(cell, self.facts))
                points = [
                    (name, value, self.now_ms, 0) for name, value in cell_metrics(cell).items()
                ]
                self.runs.metrics(run, points)
                self.runs.inputs(run, _of_benchmark(self.results.job, cell.benchmark))
                self.runs.client.log_dict(run, redacted_inside(cell.to_json()), SUMMARY_FILE)
            if predictions is not None:
                own = (predictions["cell"] == cell.name) & (
                    predictions["benchmark"] == cell.benchmark
                )
                log_predictions(self.runs.client, run, predictions[own])
                self.runs.progress()
            if several:
                self.runs.end(run, "FINISHED", self._ended_ms())

    def _files(self, parent: str) -> None:
        """All files; then plots below the table at the top of the run's page."""
        for path in self.files.artifacts():
            self.runs.file(parent, path)
        for path in self.files.in_folders():
            self.runs.file(parent, path, path.parent.name)
        names = self._figures(parent)
        if names and self.results.summary is not None:
            text = describe(self.facts, self.results.summary)
            self.runs.tags(parent, {NOTE_TAG: with_pictures(text, parent, names)})

    def _figures(self, parent: str) -> list[str]:
        """Upload plots at the half of their size, in which they fit the page; gives their names.

        MLflow's image charts are of no use for them: they write every parameter of a run above its
        picture, which leaves no room for the picture.
        """
        from PIL import Image

        names = []
        with tempfile.TemporaryDirectory(prefix="tango-figures-") as folder:
            for path in self.files.figures():
                half = Path(folder) / path.name
                with Image.open(path) as plot:
                    plot.reduce(2).save(half)
                self.runs.file(parent, half, FIGURES)
                names.append(path.name)
        return names

    def _points(self, metrics: dict[str, float]) -> list[Point]:
        """Points at the end of the run.

        The UI shows the point with the largest step, and draws a bar where the only step is 0.
        """
        return [
            (name, value, self.now_ms, self.steps.get(name, 0)) for name, value in metrics.items()
        ]

    def _ended_ms(self) -> int:
        """When the job ended; now, if that is not known."""
        started, wall_s = self._started_ms(), self.facts.wall_s
        return started + round(1000 * wall_s) if started and wall_s else self.now_ms

    def _started_ms(self) -> int | None:
        """When the job started, in milliseconds since 1970."""
        if not self.facts.started_at:
            return None
        return round(datetime.fromisoformat(self.facts.started_at).timestamp() * 1000)


def _of_benchmark(job: object, benchmark: str) -> list[DatasetInput]:
    """The dataset of one benchmark of a job."""
    return [one for one in datasets_of(job) if one.dataset.name.split(":")[0] == benchmark]
