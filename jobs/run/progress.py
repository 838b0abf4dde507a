"""Show the progress of a job on a terminal, in a notebook, in a log, or as JSON events."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from jobs.results.cell_summary import RunSummary
from pipeline.clips import DECODE_VIDEO
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock, Ticker
from pipeline.storage.urls import Place

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 15.0
_LIVE_EVERY_S = 0.5
_NAMED_FAILURES = 10
# Minimum terminal width for progress bars.
_WITH_BARS = 100


class JobProgress:
    """Observer that shows the number of finished clips and the state of every stage.

    A terminal and a notebook show a live line per stage with its rate and the remaining time;
    otherwise a line is logged at intervals. The first failed clips are named in every case.

    Args:
        console: Console for the live lines; log lines are written if it shows none.
        clock: Clock for rates and the remaining time.
        board: Board on which the stages report their progress.
        view: Shows HTML in place of what it showed before; `None` for that of the notebook, if
            the console is in one.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock = SYSTEM_CLOCK,
        board: JobBoard | None = None,
        view: Callable[[str], object] | None = None,
    ) -> None:
        self._clock = clock
        self._board = board or JobBoard()
        self.num_clips = self.clips = 0
        self.cached = self.encoded = self.answered = self.failed = 0
        self._first = self._last_log = self._clock.monotonic()
        self._quiet = console.quiet
        if view is None and console.is_jupyter and not console.quiet:
            view = _notebook_view()
        self._view = view
        self._live = view is not None or (console.is_terminal and not console.quiet)
        if view is not None:  # rendered by `_refresh` alone
            console = Console(
                file=io.StringIO(), record=True, width=_WITH_BARS, force_jupyter=False
            )
        self._lines = Progress(
            TextColumn("[bold]{task.description:<9}"),
            *([BarColumn(bar_width=24)] if console.width >= _WITH_BARS else []),
            MofNCompleteColumn(),
            *([TimeRemainingColumn(compact=True)] if console.width >= _WITH_BARS else []),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not self._live,
            get_time=clock.monotonic,
        )
        self._tasks: dict[str, TaskID] = {}
        self._ticker = Ticker(self._refresh, _LIVE_EVERY_S, "tango-progress")

    def started(self, plan: Plan, finished: int) -> None:
        """Show the lines; see `Observer`."""
        self.begin(plan.clips.num_rows)

    def begin(self, num_clips: int) -> None:
        """Start the clock and the lines.

        Args:
            num_clips: Clips of this attempt.
        """
        self.num_clips = num_clips
        self._first = self._last_log = self._clock.monotonic()
        if self._live:
            for stage, state in self._board.states().items():
                self._tasks[stage] = self._lines.add_task(stage, total=state.expected, state="")
            self._tasks["clips"] = self._lines.add_task("clips", total=num_clips, state="")
            if self._view is None:
                self._lines.start()
            self._ticker.start()

    def stopped(self) -> None:
        """Stop updating the lines; their last state stays on the screen. See `Observer`."""
        if self._tasks:
            self._ticker.stop()
            self._refresh()
            self._lines.stop()
        if self.failed > _NAMED_FAILURES:
            more = self.failed - _NAMED_FAILURES
            logger.warning("%d more clips failed; failures.parquet names all", more)

    def result(self, row: Result) -> None:
        """Count one finished clip; see `Observer`."""
        if self.clips == 0:
            self._first = self._clock.monotonic()  # do not count the start of workers and models
        self.clips += 1
        self.cached += row.status == "ok" and row.num_misses == 0
        self.encoded += row.encode_ms is not None
        self.answered += len(row.answers)
        if row.has_failed:
            self.failed += 1
            if self.failed <= _NAMED_FAILURES:
                logger.warning("%s failed: %s", row.video_id, failure_of(row))
        now = self._clock.monotonic()
        last = self.clips == self.num_clips
        if not (self._live or self._quiet) and (last or now - self._last_log > _LOG_EVERY_S):
            self._last_log = now
            left = ""
            if not last and self.clips > 1:  # at the rate since the first finished clip
                seconds = (self.num_clips - self.clips) * (now - self._first) / (self.clips - 1)
                left = f", {seconds:.0f} s left"
            counts = f"{self.clips} of {self.num_clips} clips, {self._counts()}{left}"
            logger.info("%s", counts + self._busiest(now))

    def _refresh(self) -> None:
        """Update the live lines."""
        for stage, state in self._board.states().items():
            if stage in self._tasks:
                self._lines.update(self._tasks[stage], completed=state.count.finished)
        self._lines.update(self._tasks["clips"], completed=self.clips, state=self._counts())
        if self._view is not None:
            console = self._lines.console
            console.print(self._lines.get_renderable())
            self._view(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))

    def _busiest(self, now: float) -> str:
        """Describe the stage with the busiest workers for the log; "" if no stage reports."""
        passed = now - self._first
        shares = {
            stage: state.count.busy_s / max(state.slots, 1) / passed
            for stage, state in self._board.states().items()
            if passed > 0 and state.count.busy_s > 0
        }
        if not shares:
            return ""
        stage = max(shares, key=lambda name: shares[name])
        return f" · busiest: {stage} {100 * min(1.0, shares[stage]):.0f} %"

    def _counts(self) -> str:
        """Describe the counts of clips and answers."""
        answers = f"{self.answered / 1e6:.2f}M" if self.answered >= 1e6 else str(self.answered)
        parts = [f"encoded {self.encoded}", f"cached {self.cached}", f"answers {answers}"]
        return " · ".join([*parts, f"failed {self.failed}"])


def _notebook_view() -> Callable[[str], object]:
    """Function that shows HTML in the output of a notebook's cell, replacing what it showed."""
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))


def failure_of(row: Result) -> str:
    """Status and reason of a failed clip, or of its first failed answer."""
    if row.status != "ok":
        return f"{row.status}: {row.error}"
    answer = next(answer for answer in row.answers if answer.has_failed)
    return f"{answer.status}: {answer.error}"


def is_decoded(result: Result) -> bool:
    """Whether a clip's frames were read in this attempt."""
    return result.decode_video_ms is not None and result.status != DECODE_VIDEO.failure


@dataclass(frozen=True)
class Display:
    """Destinations of a job's output.

    Attributes:
        console: Console for the tables and the paths of the results.
        progress: Console for the live lines; a quiet one shows no lines and logs no counts.
        events: Stream for JSON events; `None` for none.
    """

    console: Console
    progress: Console
    events: TextIO | None = None

    @classmethod
    def on(cls, console: Console, *, quiet: bool = False, events: TextIO | None = None) -> Display:
        """The display of one console.

        Args:
            console: Console for tables and progress.
            quiet: Show no progress.
            events: Stream for JSON events, one object per line; `console` should write elsewhere.
        """
        silent = quiet or events is not None
        return cls(console, Console(quiet=True) if silent else console, events)

    @property
    def table_width(self) -> int | None:
        """Maximum width of a table in characters; `None` for no limit."""
        from jobs.report.tables.cells import table_width

        return table_width(self.console.is_terminal, self.console.width)

    @property
    def say(self) -> Callable[..., None]:
        """Function that prints a line without markup, highlighting or wrapping."""
        return partial(self.console.print, markup=False, highlight=False, soft_wrap=True)


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
            stage: {"expected": state.expected, "waiting": state.waiting, **asdict(state.count)}
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
