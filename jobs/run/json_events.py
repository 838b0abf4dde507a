"""`--json`: write the events of a job, one JSON object per line."""

from __future__ import annotations

import json
import threading
from typing import TextIO

from jobs.results.run_summary import RunSummary
from jobs.run.progress import failure_of
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock, Ticker
from pipeline.storage.urls import Place

_EVERY_S = 5.0


class JsonEvents:
    """Writes `started`, `progress`, `clip_failed`, `stopped` and `finished`.

    Args:
        stream: Receives the lines.
        run_dir: Run directory.
        board: Board on which the stages report their progress.
        clock: Clock for the dates of the events.
    """

    def __init__(
        self, stream: TextIO, run_dir: Place, board: JobBoard, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._stream, self._run_dir, self._board, self._clock = stream, run_dir, board, clock
        self._lock = threading.Lock()
        self._num_clips = self._clips = self._failed = self._answers = 0
        self._ticker = Ticker(self._progress, _EVERY_S, "tango-json")

    def started(self, plan: Plan, finished: int) -> None:
        """See `Observer`."""
        self._num_clips = plan.clips.num_rows
        self._write("started", clips=self._num_clips, finished_before=finished)
        self._ticker.start()

    def result(self, row: Result) -> None:
        """See `Observer`."""
        self._clips += 1
        self._answers += len(row.answers)
        if row.has_failed:
            self._failed += 1
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
                "accuracy": cell.accuracy.value if cell.accuracy else None,
                "metric": cell.metric,
                "score": cell.headline.value if cell.headline else None,
                "ci95": [cell.headline.low, cell.headline.high] if cell.headline else None,
                "questions": cell.counts.num_questions,
                "failed": cell.counts.num_failed,
            }
            for cell in (summary.cells if summary else ())
        ]
        self._write("finished", exit_code=exit_code, mlflow_run=tracked, cells=cells)

    def _progress(self, event: str = "progress") -> None:
        stages = {
            stage: {
                "expected": state.expected,
                "started": state.count.started,
                "finished": state.count.finished,
                "failed": state.count.failed,
                "waiting": state.waiting,
                "busy_s": round(state.count.busy_s, 3),
            }
            for stage, state in self._board.states().items()
        }
        self._write(
            event,
            clips=self._clips,
            of=self._num_clips,
            failed=self._failed,
            answers=self._answers,
            stages=stages,
        )

    def _write(self, event: str, **values: object) -> None:
        """Write one line; the lock keeps lines of several threads apart."""
        about = {
            "event": event,
            "time": self._clock.now().isoformat(timespec="milliseconds"),
            "run": str(self._run_dir),
        }
        with self._lock:
            self._stream.write(json.dumps({**about, **values}, default=str) + "\n")
            self._stream.flush()
