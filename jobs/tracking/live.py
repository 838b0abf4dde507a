"""Log a running job to MLflow from a background thread.

The job itself only appends events to a file in its run directory; the thread uploads new ones.
MLflow is imported and called only in that thread, which is abandoned if a server hangs.
"""

from __future__ import annotations

import logging
import queue
import shlex
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from jobs.tracking.events import EVENTS_FILE, EventFile
from jobs.tracking.numbers import RunningNumbers
from jobs.tracking.runs import this_driver
from jobs.tracking.server import TrackingError, default_tracking_uri, first_line, raise_if_wrong
from jobs.tracking.upload import RunUpload
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.redaction import redacted
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock, Repeated
from pipeline.storage.copies import home_of
from pipeline.storage.leases import LeaseError

logger = logging.getLogger(__name__)

Status = Literal["FAILED", "KILLED"]

EVERY_S = 10.0
IDLE_S = 30.0
"""An upload is given up after this time without progress."""
_MOST_AT_FULL_RATE = 2_000
"""Number of samples after which the interval grows, to limit the size of the events file."""
_LONGEST_INTERVAL_S = 300.0
_END_WITHIN_S = {"KILLED": 1.5, "FAILED": 10.0}
"""Maximum time to upload the end of a job that failed or was killed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class LiveRun:
    """Context manager and observer that logs one job to MLflow.

    If the block ends with an exception, the MLflow run is marked `KILLED` (interruption) or
    `FAILED`. `finish` uploads the results.

    Args:
        run_dir: The run directory, or the local staging directory of a run in an object store.
        tracking_uri: MLflow server or store; `None` for the SQLite store next to the run.
        command: Name of the command, e.g. `sweep`.
        every_s: Seconds between two samples.
        board: Board on which the stages report their progress.
        clock: Clock for the dates of samples.

    Raises:
        InputError: If the URI is MLflow's retired file store.
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
        self._home = home_of(run_dir.absolute())
        self._run_dir, self._command, self._every_s = run_dir, command, every_s
        self._board, self._clock = board or JobBoard(), clock
        self._events = EventFile(run_dir / EVENTS_FILE)
        self._lock = threading.RLock()
        self._sender: Sender | None = None
        self._ticker: Repeated | None = None
        self._numbers = RunningNumbers(self._board, [])
        self._num_caches = self._before = 0
        self._begun = self._sampled = clock.monotonic()
        self._ended = False

    def __enter__(self) -> LiveRun:
        """Does nothing yet, because another driver may hold the run's lease."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record how the job ended, unless recorded already."""
        if error is None or isinstance(error, LeaseError):  # another driver continues the run
            self._release()
        else:
            status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
            self.end(status, first_line(error) or type(error).__name__)

    def started(self, plan: Plan, finished: int) -> None:
        """Record the start and begin to upload; see `Observer`.

        Args:
            plan: Plan of the job.
            finished: Number of clips that earlier attempts finished.
        """
        cells = [(name, method.name) for name in plan.protocols for method in plan.methods]
        self._board.plan(plan)
        self._numbers = RunningNumbers(self._board, cells if plan.answer else [])
        self._num_caches, self._before = len(plan.caches), finished
        self._begun = self._sampled = self._clock.monotonic()
        self._write(
            "start",
            command=self._command,
            driver=this_driver(),
            directory=str(self._home),
            num_clips=plan.clips.num_rows + finished,
        )
        self._sender = Sender(self._run_dir, self.uri, self._every_s)
        self._ticker = self._clock.repeat(self._tick, self._every_s, "tango-live")
        self._ticker.start()

    def result(self, row: Result) -> None:
        """Count one finished clip; see `Observer`."""
        with self._lock:
            self._numbers.add(row, self._num_caches)

    def stopped(self) -> None:
        """Stop sampling and write a last sample; see `Observer`."""
        if self._stop_ticker():
            self.sample()

    def sample(self) -> None:
        """Write a sample of the current metrics."""
        with self._lock:
            if self._ended:
                return
            self._sampled = now = self._clock.monotonic()
            metrics = self._numbers.metrics(now - self._begun)
            if self._sender:
                metrics |= self._sender.machine_metrics()
            self._write("sample", step=self._before + self._numbers.clips, metrics=metrics)

    def end(self, status: Status, reason: str = "") -> None:
        """Record that the job ended without results.

        May be called repeatedly, and from a signal handler.

        Args:
            status: `KILLED` if it was interrupted, else `FAILED`.
            reason: One-line reason.
        """
        sender, self._sender = self._sender, None
        if sender is None:
            return
        self._stop_ticker(wait=False)  # waiting could deadlock on a lock of the interrupted thread
        self.sample()
        self._write_end(status, redacted(reason))
        sender.end(_END_WITHIN_S[status])

    def finish(self, idle_s: float = IDLE_S) -> str | None:
        """Upload the results, which must be on disk; logs a warning instead of failing.

        Args:
            idle_s: Seconds without progress after which the upload is given up.

        Returns:
            The MLflow run id, or `None` after one warning if the run was not (completely) uploaded.
        """
        self.stopped()
        self._write_end("FINISHED")
        self._sender = self._sender or Sender(self._run_dir, self.uri, self._every_s)
        try:
            return self._sender.finish(idle_s)
        except TrackingError as error:
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

    def _write(self, kind: str, **about: Any) -> None:
        now_ms = int(1000 * self._clock.now().timestamp())
        self._events.write({"kind": kind, "time": now_ms, **about})

    def _write_end(self, status: str, reason: str = "") -> None:
        """Write the last event of this attempt."""
        with self._lock:
            self._ended = True
            self._write("end", status=status, reason=reason)

    def _tick(self) -> None:
        """Write a sample if the current interval, which grows with the job's age, has passed."""
        now = self._clock.monotonic()
        grown_s = min((now - self._begun) / _MOST_AT_FULL_RATE, _LONGEST_INTERVAL_S)
        if now - self._sampled >= 0.9 * max(self._every_s, grown_s):
            self.sample()

    def _stop_ticker(self, *, wait: bool = True) -> bool:
        """Stop the sampling thread; whether it was at work."""
        ticker, self._ticker = self._ticker, None
        if ticker:
            ticker.stop(wait=wait)
        return ticker is not None

    def _release(self) -> None:
        """Stop the sampling and the uploading thread."""
        self._stop_ticker()
        if self._sender:
            self._sender.abandon()
            self._sender = None


class _AbandonedError(Exception):
    """Raised in the uploading thread to stop it after it was abandoned."""


class Sender(threading.Thread):
    """Thread that uploads the events and results of one run to MLflow.

    Args:
        run_dir: The run directory.
        tracking_uri: MLflow server or store.
        every_s: Seconds between two samples of the job.
    """

    def __init__(self, run_dir: Path, tracking_uri: str, every_s: float) -> None:
        super().__init__(name="tango-mlflow", daemon=True)
        self._upload = RunUpload(run_dir, tracking_uri, progress=self._progress)
        self._every_s = min(every_s, _LONGEST_PAUSE_S)
        # A SimpleQueue, because signal handlers write to it, and its `put` is reentrant.
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._progress_at = time.monotonic()
        self._answered = self._is_abandoned = False
        self._error = self._run_id = ""
        self._monitors: list[Any] = []
        self.start()

    def machine_metrics(self) -> dict[str, float]:
        """Usage of CPU, memory, disk, network and GPUs of this machine, from MLflow's monitors."""
        metrics: dict[str, float] = {}
        for monitor in self._monitors:
            with suppress(Exception):  # psutil and NVML raise various errors
                monitor.collect_metrics()
                values = monitor.aggregate_metrics()
                metrics |= {f"system/{name}": float(value) for name, value in values.items()}
                monitor.clear_metrics()
        return metrics

    def finish(self, idle_s: float) -> str:
        """Upload remaining events and the results, and wait; returns the MLflow run id.

        Raises:
            TrackingError: If it failed, or made no progress for `idle_s` seconds.
        """
        self._progress_at = time.monotonic()
        self._commands.put("finish")
        while self.is_alive():
            if time.monotonic() - self._progress_at > idle_s:
                self.abandon()
                raise TrackingError(f"no progress for {idle_s:g} s")
            time.sleep(0.02)
        if not self._run_id:
            raise TrackingError(self._error)
        return self._run_id

    def end(self, within_s: float) -> None:
        """Upload remaining events for at most `within_s`, if the store has responded before."""
        self._commands.put("end")
        deadline = time.monotonic() + within_s
        while self._answered and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.abandon()

    def abandon(self) -> None:
        """Stop the thread after its current request, without waiting."""
        self._is_abandoned = True
        self._commands.put("end")

    def run(self) -> None:
        """Upload new events at intervals, which grow while the store is unavailable."""
        first = pause = min(_FIRST_PAUSE_S, self._every_s)
        command = ""
        while not command:
            with suppress(queue.Empty):
                command = self._commands.get(timeout=pause)
            try:
                if command == "finish":
                    self._run_id = self._upload.everything()
                    return
                self._send()
                pause = max(first, self._every_s)
            except _AbandonedError:
                return
            except Exception as error:
                # Any error: a job must not fail because its metrics cannot be uploaded.
                self._error = first_line(error) or type(error).__name__
                logger.debug("MLflow does not have the latest events: %s", self._error)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _send(self) -> None:
        """Upload new events; the first time also end the runs of dead drivers."""
        self._upload.events()
        self._error = ""
        if not self._monitors:
            self._upload.end_dead_runs()
            self._monitors = _machine_monitors()

    def _progress(self) -> None:
        self._progress_at, self._answered = time.monotonic(), True
        if self._is_abandoned:
            raise _AbandonedError


def _machine_monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    with suppress(ImportError, RuntimeError):  # no GPU here, or no package that knows it
        monitors.append(GPUMonitor())
    return monitors
