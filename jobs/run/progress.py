"""Show the progress of a job on a terminal, in a log, or as JSON events."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.results.cell_summary import RunSummary
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock, Ticker
from pipeline.storage.urls import Place

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 15.0
_EVENT_EVERY_S = 5.0
_NAMED_FAILURES = 10
_COUNTS = ("encoded", "cached", "answers", "failed")


class JobProgress:
    """Observer that shows the number of finished clips with the remaining time.

    A terminal shows a live line, a notebook and a log get a line at intervals. The first failed
    clips are named in every case.

    Args:
        console: Console for the progress; a quiet one shows only failed clips.
        clock: Clock for rates and the remaining time.
    """

    def __init__(self, console: Console, clock: Clock = SYSTEM_CLOCK) -> None:
        self._console, self._clock = console, clock
        self._number = Counter[str]()
        self._num_clips, self._first, self._last_line = 0, 0.0, 0.0
        self._line = Progress(
            TextColumn("[bold]clips"),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[counts]}"),
            console=console,
            disable=console.quiet or not console.is_terminal,
            get_time=clock.monotonic,
        )

    def started(self, plan: Plan, finished: int) -> None:
        """Show the line; see `Observer`."""
        self.begin(plan.clips.num_rows)

    def begin(self, num_clips: int) -> None:
        """Start the clock and the line.

        Args:
            num_clips: Clips of this attempt.
        """
        self._num_clips, self._last_line = num_clips, self._clock.monotonic()
        self._task = self._line.add_task("", total=num_clips, counts="")
        self._line.start()

    def stopped(self) -> None:
        """Stop updating the line; its last state stays on the screen. See `Observer`."""
        self._line.stop()
        if (more := self._number["failed"] - _NAMED_FAILURES) > 0:
            logger.warning("%d more clips failed; failures.parquet names all", more)

    def result(self, row: Result) -> None:
        """Count one finished clip; see `Observer`."""
        number, now = self._number, self._clock.monotonic()
        if not number["clips"]:
            self._first = now  # do not count the start of workers and models
        number["clips"] += 1
        number["cached"] += row.status == "ok" and row.num_misses == 0
        number["encoded"] += row.encode_ms is not None
        number["answers"] += len(row.answers)
        if row.has_failed:
            number["failed"] += 1
            if number["failed"] <= _NAMED_FAILURES:
                logger.warning("%s failed: %s", row.video_id, failure_of(row))
        counts = " · ".join(f"{name} {number[name]}" for name in _COUNTS)
        self._line.update(self._task, completed=number["clips"], counts=counts)
        left = self._num_clips - number["clips"]
        if not self._line.disable or self._console.quiet:
            return
        if not left or now - self._last_line > _LOG_EVERY_S:
            self._last_line = now
            text = f"{number['clips']} of {self._num_clips} clips, {counts}"
            if left and number["clips"] > 1:  # at the rate since the first finished clip
                text += f", {left * (now - self._first) / (number['clips'] - 1):.0f} s left"
            if self._console.is_jupyter:
                self._console.print(text, highlight=False)
            else:
                logger.info(text)


def failure_of(row: Result) -> str:
    """Status and reason of a failed clip, or of its first failed answer."""
    failed = row if row.status != "ok" else next(one for one in row.answers if one.has_failed)
    return f"{failed.status}: {failed.error}"


class Display:
    """Destinations of a job's output.

    Args:
        console: Console for the tables, the paths of the results, and the progress.
        quiet: Whether to show no progress.
        events: Stream for JSON events, one object per line, instead of the progress.
    """

    def __init__(
        self, console: Console, *, quiet: bool = False, events: TextIO | None = None
    ) -> None:
        self.console, self.events = console, events
        self.progress = Console(quiet=True) if quiet or events is not None else console

    def say(self, text: str) -> None:
        """Print text without markup, highlighting or wrapping."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class JsonEvents:
    """Observer that writes `started`, `progress`, `clip_failed`, `stopped` and `finished`.

    Args:
        stream: Receives the lines.
        run_dir: Run directory.
        board: Board on which the stages report their progress.
    """

    def __init__(self, stream: TextIO, run_dir: Place, board: JobBoard) -> None:
        self._stream, self._run_dir, self._board = stream, run_dir, board
        self._lock = threading.Lock()
        self._counts = {"clips": 0, "of": 0, "failed": 0, "answers": 0}
        self._ticker = Ticker(self._progress, _EVENT_EVERY_S, "tango-json")

    def started(self, plan: Plan, finished: int) -> None:
        """See `Observer`."""
        self._counts["of"] = plan.clips.num_rows
        self._write("started", clips=plan.clips.num_rows, finished_before=finished)
        self._ticker.start()

    def result(self, row: Result) -> None:
        """See `Observer`."""
        self._counts["clips"] += 1
        self._counts["answers"] += len(row.answers)
        if row.has_failed:
            self._counts["failed"] += 1
            about = {name: getattr(row, name) for name in ("benchmark", "video_id", "path")}
            self._write("clip_failed", **about, reason=failure_of(row))

    def stopped(self) -> None:
        """See `Observer`."""
        self._ticker.stop()
        self._progress("stopped")

    def finished(self, exit_code: int, summary: RunSummary | None, tracked: str | None) -> None:
        """Write the `finished` event.

        Args:
            exit_code: Exit code for this run.
            summary: Summary of the run; `None` for a job that only fills caches.
            tracked: Id of the run in MLflow; `None` if it was not uploaded.
        """
        cells = [
            {
                "benchmark": cell.benchmark,
                "cell": cell.name,
                "accuracy": cell.accuracy and cell.accuracy.value,
                "metric": cell.metric,
                "score": cell.headline and cell.headline.value,
                "ci95": cell.headline and [cell.headline.low, cell.headline.high],
                "questions": cell.counts.num_questions,
                "failed": cell.counts.num_failed,
            }
            for cell in (summary.cells if summary else ())
        ]
        self._write("finished", exit_code=exit_code, mlflow_run=tracked, cells=cells)

    def _progress(self, event: str = "progress") -> None:
        stages = {
            stage: {"expected": state.expected, "waiting": state.waiting, **asdict(state.count)}
            for stage, state in self._board.states().items()
        }
        self._write(event, **self._counts, stages=stages)

    def _write(self, event: str, **values: object) -> None:
        """Write one line; the lock keeps lines of several threads apart."""
        time = SYSTEM_CLOCK.now().isoformat(timespec="milliseconds")
        about = {"event": event, "time": time, "run": str(self._run_dir)}
        with self._lock:
            self._stream.write(json.dumps({**about, **values}, default=str) + "\n")
            self._stream.flush()
