"""From the spool of a job to its MLflow run, once each: while it runs, on reconnect, or later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jobs.tracking.datasets import datasets_of
from jobs.tracking.drivers import DIRECTORY_TAG, DRIVER_TAG, HEARTBEAT_TAG
from jobs.tracking.mlflow_runs import NOTE_TAG, MlflowRuns, Point, shown_name
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.spool import EVENTS, FOLDER, SYSTEM, Event, Sent, read_events
from jobs.tracking.values import flatten, job_tags

_MAX_POINTS = 1000


@dataclass
class Replay:
    """Sends what a store does not have yet of the events of one run.

    Attributes:
        runs: Writes the MLflow runs.
        files: The run directory.
        sent: What the store has; saved after every request, so that nothing is sent again.
        driver: Of the attempt that began last among the events sent here and has not ended, as its
            tag says; empty if there is none.
    """

    runs: MlflowRuns
    files: RunDirectory
    sent: Sent
    driver: str = ""
    _points: list[Point] = field(default_factory=list)
    _heartbeat_ms: int = 0

    def send(self) -> bool:
        """Send all that is there by now.

        Returns:
            Whether there is an MLflow run; without the event of a start there is none.
        """
        self._points = []  # of a request that failed; they are read again
        for name in (EVENTS, SYSTEM):
            path = self.files.path / FOLDER / name
            self._send_file(path, read_events(path, self.sent.offset_in(path)))
        return bool(self.sent.run)

    def _send_file(self, path: Path, events: Iterable[tuple[Event, int]]) -> None:
        """All new events of one file, metrics in requests as large as the store takes."""
        for event, offset in events:
            kind = event.get("kind")
            if kind == "sample":
                self._points += _points(event)
                self._heartbeat_ms = int(event["time"])
            if kind != "sample" or len(self._points) >= _MAX_POINTS:
                self._flush()
                if kind == "start":
                    self._start(event)
                elif kind == "end" and self.sent.run:
                    self._end(event)
                self.sent.sent_until(path, offset)
            reached = offset
        if self._points:
            self._flush()
            self.sent.sent_until(path, reached)

    def _flush(self) -> None:
        """Send the points that are pending."""
        if self._points and self.sent.run:
            self.runs.metrics(self.sent.run, self._points)
            self.runs.tags(self.sent.run, {HEARTBEAT_TAG: _iso(self._heartbeat_ms)})
        self._points = []

    def _start(self, event: Event) -> None:
        """Make the run, or take it up again."""
        job = self.files.job()
        time_ms = int(event["time"])
        tags = {
            **job_tags(job, str(event.get("command", ""))),
            DRIVER_TAG: str(event.get("driver", "")),
            DIRECTORY_TAG: str(event.get("directory", "")),
            HEARTBEAT_TAG: _iso(time_ms),
            "num_clips": str(event.get("num_clips", "")),
        }
        about = (
            f"`tango {tags.get('kind', '')}` of **{tags.get('model')}** on {tags.get('benchmark')}"
        )
        tags |= {NOTE_TAG: f"{about}, {tags['num_clips']} clips. It has no results yet."}
        run = self.runs.start(shown_name(self.files.path.name), tags, time_ms)
        self.runs.run_on(run)
        self.sent.run = run
        self.sent.save()
        self.driver = tags[DRIVER_TAG]
        if job is not None:
            self.runs.params(run, flatten(job))
            self.runs.inputs(run, datasets_of(job))

    def _end(self, event: Event) -> None:
        """Mark the run as ended, and say why."""
        self.driver = ""
        reason, time_ms = str(event.get("reason", "")), int(event["time"])
        self.runs.end(self.sent.run, str(event["status"]), time_ms, reason)


def _points(event: Event) -> list[Point]:
    """The points of one sample."""
    when, step = int(event["time"]), int(event.get("step", 0))
    return [(name, float(value), when, step) for name, value in event["metrics"].items()]


def _iso(time_ms: int) -> str:
    """Milliseconds since 1970 as people read them."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
