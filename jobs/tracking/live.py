"""A job's run in MLflow while the job is at work, as the driver sees it.

The driver only counts and writes to the spool in its run directory; `sender.py`, a process of its
own, does the rest. A server that is away, slow or hanging costs the job nothing.
"""

from __future__ import annotations

import logging
import shlex
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal

from jobs.tracking.drivers import Driver
from jobs.tracking.live_scores import Cell
from jobs.tracking.run_files import RunDirectory
from jobs.tracking.samples import RunningNumbers
from jobs.tracking.server import (
    TrackingError,
    default_tracking_uri,
    first_line,
    raise_if_wrong,
)
from jobs.tracking.spool import EVENTS, FOLDER, Sent, Spool
from jobs.tracking.upload import IDLE_S, Sender
from pipeline.clock import SYSTEM_CLOCK, Clock, Repeated
from pipeline.lease import LeaseError
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.redaction import redacted
from pipeline.rows import Row

logger = logging.getLogger(__name__)

Status = Literal["FAILED", "KILLED"]

EVERY_S = 10.0
_MOST_AT_FULL_RATE = 10_000
"""Samples after which their interval grows with the job, so that the spool stays bounded."""
_LAST_WORDS_S = {"KILLED": 1.5, "FAILED": 10.0}
"""How long the store may take to hear that a job ended badly."""


class LiveRun:
    """One job in MLflow, from its start to its end.

    Leaving its block with an exception marks the run: `KILLED` after an interruption, `FAILED`
    otherwise. `finish` uploads the results.

    Args:
        run_dir: Where the job writes, on a local disk, or the desk of a run in a store.
        tracking_uri: Where to log; `None` for the SQLite store beside the run.
        command: Name of the command, e.g. `sweep`.
        every_s: Seconds between two samples.
        board: What the stages report.
        clock: Dates the samples.

    Raises:
        ValueError: If the URI names MLflow's retired file store.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str | None,
        command: str,
        *,
        every_s: float = EVERY_S,
        board: JobBoard | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.uri = tracking_uri or default_tracking_uri(run_dir.parent)
        raise_if_wrong(self.uri)
        self._home = RunDirectory(run_dir).home()
        self._run_dir, self._command, self._every_s = run_dir, command, every_s
        self._board, self._clock = board or JobBoard(), clock
        self._spool = Spool(run_dir / FOLDER / EVENTS)
        self._lock = threading.RLock()
        self._sender: Sender | None = None
        self._ticker: Repeated | None = None
        self._numbers = RunningNumbers(self._board, [])
        self._num_caches = self._before = 0
        self._begun = self._sampled = clock.monotonic()
        self._ended = False

    def __enter__(self) -> LiveRun:
        """Nothing yet: a run that another driver has is not touched."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Say how it ended, unless that is said."""
        if error is None or isinstance(error, LeaseError):  # another driver goes on with the run
            self._release()
        else:
            status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
            self.end(status, first_line(error) or type(error).__name__)

    def started(self, plan: Plan, finished: int) -> None:
        """The job begins; its run is RUNNING.

        Args:
            plan: What it will do.
            finished: Clips that earlier attempts finished.
        """
        cells: list[Cell] = [
            (benchmark, method.name) for benchmark in plan.protocols for method in plan.methods
        ]
        self._board.plan(plan)
        self._numbers = RunningNumbers(self._board, cells if plan.answer else [])
        self._num_caches, self._before = len(plan.caches), finished
        self._begun = self._sampled = self._clock.monotonic()
        about = {
            "command": self._command,
            "driver": Driver.this().to_tag(),
            "directory": str(self._home),
            "num_clips": plan.clips.num_rows + finished,
        }
        self._spool.write({"kind": "start", "time": self._now_ms(), **about})
        self._sender = Sender(self._run_dir, self.uri, self._every_s)
        self._ticker = self._clock.repeat(self._tick, self._every_s, "tango-live")
        self._ticker.start()

    def result(self, row: Row) -> None:
        """Take one finished clip (`rows.RESULT`)."""
        with self._lock:
            self._numbers.add(row, self._num_caches)

    def stopped(self) -> None:
        """No more clips come; the last numbers are written."""
        if self._ticker:
            self._ticker.stop()
            self._ticker = None
            self.sample()

    def sample(self) -> None:
        """Write the numbers of this moment."""
        with self._lock:
            if self._ended:
                return
            self._sampled = now = self._clock.monotonic()
            metrics = self._numbers.metrics(now - self._begun)
            step = self._before + self._numbers.clips
            event = {"kind": "sample", "time": self._now_ms(), "step": step, "metrics": metrics}
            self._spool.write(event)

    def end(self, status: Status, reason: str = "") -> None:
        """The job ended without results; safe to call again, and from a handler of a signal.

        Args:
            status: `KILLED` if somebody stopped it.
            reason: In one line.
        """
        sender, self._sender = self._sender, None
        if sender is None:
            return
        if self._ticker:
            self._ticker.stop(wait=False)  # it may wait for what the interrupted thread holds
            self._ticker = None
        self.sample()
        self._write_end(status, redacted(reason))
        # A job that failed before the store heard of it need not make its user wait for that.
        known = bool(Sent.load(self._run_dir, self.uri).run)
        sender.end(_LAST_WORDS_S[status] if known else 0.0)

    def numbers_are_there(self) -> None:
        """The results are on disk but for their report: their upload begins."""
        if self._sender:
            self._sender.begin()

    def finish(self, idle_s: float = IDLE_S) -> str | None:
        """Upload the results, which are on disk by now, and never fail.

        Args:
            idle_s: Seconds without progress after which the upload is given up.

        Returns:
            The MLflow run id, or `None` after one warning if the run was not (completely) uploaded.
        """
        self.stopped()
        self._write_end("FINISHED")
        try:
            sender = self._sender or Sender(self._run_dir, self.uri)
            self._sender = sender
            return sender.finish(idle_s)
        except (TrackingError, OSError) as error:
            logger.warning(
                "not logged to MLflow at %s (%s); the results are in %s, upload them with "
                "`tango log-run %s --tracking-uri %s`",
                redacted(self.uri),
                first_line(error),
                self._home,
                shlex.quote(str(self._home)),
                shlex.quote(redacted(self.uri)),
            )
            return None
        finally:
            self._release()

    def _write_end(self, status: str, reason: str = "") -> None:
        """The last event of this attempt."""
        with self._lock:
            self._ended = True
            about = {"status": status, "reason": reason}
            self._spool.write({"kind": "end", "time": self._now_ms(), **about})

    def _tick(self) -> None:
        """Write a sample if the interval that fits the age of the job is over."""
        now = self._clock.monotonic()
        interval = max(self._every_s, (now - self._begun) / _MOST_AT_FULL_RATE)
        if now - self._sampled >= 0.9 * interval:
            self.sample()

    def _release(self) -> None:
        """End what is still at work."""
        if self._ticker:
            self._ticker.stop()
            self._ticker = None
        if self._sender:
            self._sender.kill()
            self._sender = None

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
