"""Log a running job to MLflow from a background thread.

The thread samples the metrics and sends them; MLflow is imported and called only there, and the
thread is abandoned if a server hangs. Samples that a server missed stay in memory until it responds
again; their number is limited by intervals that grow with the job's age.
"""

from __future__ import annotations

import logging
import queue
import shlex
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from jobs.results.answer_columns import read_groups
from jobs.tracking import runs
from jobs.tracking.contents import metric_name
from pipeline.metrics import JobBoard, StageState
from pipeline.plan import Plan
from pipeline.redaction import redacted
from pipeline.rows import AnswerRow, Result
from pipeline.storage.leases import LeaseError
from pipeline.storage.urls import Place
from tango_core.benchmarks import facts_of
from tango_core.errors import UserError
from tango_core.metrics import Questions, RunningEstimate

logger = logging.getLogger(__name__)

Status = Literal["FAILED", "KILLED"]

EVERY_S = 10.0
IDLE_S = 30.0
"""An upload is given up after this time without progress."""
_MOST_AT_FULL_RATE = 2_000
"""Number of samples after which the interval grows."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_END_WITHIN_S = {"KILLED": 1.5, "FAILED": 10.0}
"""Maximum time to upload the end of a job that failed or was killed."""


class LiveRun:
    """Context manager and observer that logs one job to MLflow.

    If the block ends with an exception, the MLflow run is marked `KILLED` (interruption) or
    `FAILED`. `finish` uploads the results.

    Args:
        run_dir: The run directory.
        recipe: Parsed content of its `job.yaml`.
        tracking_uri: MLflow server or store; `None` for the SQLite store next to the run.
        command: Name of the command, e.g. `sweep`.
        every_s: Seconds between two samples.
        board: Board on which the stages report their progress.

    Raises:
        InputError: If the URI is MLflow's retired file store.
    """

    def __init__(
        self,
        run_dir: Place,
        recipe: Mapping[str, Any],
        tracking_uri: str | None,
        command: str,
        *,
        every_s: float = EVERY_S,
        board: JobBoard | None = None,
    ) -> None:
        self.uri = tracking_uri or runs.default_tracking_uri(run_dir.parent)
        runs.raise_if_wrong(self.uri)
        self._run_dir, self._recipe = run_dir, recipe
        self._command, self._every_s = command, every_s
        self._numbers = RunningNumbers(board or JobBoard())
        self._lock = threading.RLock()  # of the numbers and samples
        self._num_caches = self._before = self._num_clips = 0
        self._begun = 0.0
        self._points: list[runs.Point] = []
        self._thread = threading.Thread(target=self._work, name="tango-mlflow", daemon=True)
        # A SimpleQueue, because signal handlers write to it, and its `put` is reentrant.
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._results: Path | None = None
        self._runs: runs.MlflowRuns | None = None
        self._run_id = self._finished_id = self._reason = self._error = ""
        self._progress_at = 0.0

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
            self._commands.put("leave")
        else:
            status: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
            self.end(status, runs.first_line(error) or type(error).__name__)

    def started(self, plan: Plan, finished: int) -> None:
        """Begin to log; see `Observer`.

        Args:
            plan: Plan of the job.
            finished: Number of clips that earlier attempts finished.
        """
        self._num_caches, self._before = len(plan.caches), finished
        self._num_clips = plan.clips.num_rows + finished
        self._begun = time.monotonic()
        self._thread.start()

    def result(self, row: Result) -> None:
        """Count one finished clip; see `Observer`."""
        with self._lock:
            self._numbers.add(row, self._num_caches)

    def stopped(self) -> None:
        """Take a last sample; see `Observer`."""
        self.sample()

    def sample(self) -> None:
        """Take a sample of the current metrics."""
        with self._lock:
            metrics = self._numbers.metrics(time.monotonic() - self._begun)
            when = int(1000 * time.time()), self._before + self._numbers.clips
            self._points += [(name, value, *when) for name, value in metrics.items()]

    def end(self, status: Status, reason: str = "") -> None:
        """Mark the run as ended without results; waits some seconds if the store has responded.

        Args:
            status: `KILLED` if it was interrupted, else `FAILED`.
            reason: One-line reason.
        """
        if self._thread.is_alive() and not self._reason:
            self._reason = redacted(reason or status)
            self._commands.put(status)
            self._thread.join(_END_WITHIN_S[status] if self._progress_at else 0)

    def finish(self, results: Path, idle_s: float = IDLE_S) -> str | None:
        """Upload the results; logs a warning instead of failing.

        Args:
            results: The run directory, or a local copy of it.
            idle_s: Seconds without progress after which the upload is given up.

        Returns:
            The MLflow run id, or `None` after one warning if the run was not (completely) uploaded.
        """
        self._results = results
        self._made_progress()
        self._commands.put("finish")
        while self._thread.is_alive():
            if time.monotonic() - self._progress_at > idle_s:
                self._error = f"no progress for {idle_s:g} s"
                break
            self._thread.join(0.05)
        if self._finished_id:
            return self._finished_id
        logger.warning(
            "not logged to MLflow at %s (%s); the results are in %s, upload them with "
            "`tango log-run %s --tracking-uri %s`",
            redacted(self.uri),
            self._error,
            self._run_dir,
            shlex.quote(str(self._run_dir)),
            shlex.quote(redacted(self.uri)),
        )
        return None

    def _work(self) -> None:
        """Send new samples at intervals until a command ends the thread."""
        first = pause = min(_FIRST_PAUSE_S, self._every_s)
        command = ""
        while not command:
            with suppress(queue.Empty):
                command = self._commands.get(timeout=pause)
            if command == "leave":
                return
            try:
                with runs.tracking_errors():
                    self._work_once(command)
                age_s = time.monotonic() - self._begun
                pause = max(first, self._every_s, age_s / _MOST_AT_FULL_RATE)
            except Exception as error:
                # A job must not fail because its metrics cannot be uploaded.
                self._error = runs.first_line(error) or type(error).__name__
                if not isinstance(error, (runs.TrackingError, UserError, OSError)):
                    logger.warning("cannot log to MLflow; please report this", exc_info=error)
                logger.debug("MLflow does not have the latest metrics: %s", self._error)
                pause = min(2 * pause, max(self._every_s, _LONGEST_PAUSE_S))

    def _work_once(self, command: str) -> None:
        """Send new samples, then what ends the run; the first time also end those of dead drivers.

        Args:
            command: `"finish"` uploads the results, a status marks the run; "" does neither.
        """
        if command != "finish":
            self.sample()
        store = self._runs
        if store is None:
            store = runs.MlflowRuns.connect(self.uri, self._run_dir, self._made_progress)
            self._run_id = store.begin(self._recipe, self._command, self._num_clips)
            self._runs = store
            store.end_dead_runs()
        if points := list(self._points):
            store.log(self._run_id, metrics=points)
            with self._lock:
                del self._points[: len(points)]
        if command == "finish" and self._results is not None:
            self._finished_id = runs.Results(self._results).upload(store)
        elif command:
            store.end(self._run_id, command, None, self._reason)

    def _made_progress(self) -> None:
        self._progress_at = time.monotonic()


class LiveScores:
    """Every headline metric over the answers so far, over all cells."""

    def __init__(self) -> None:
        self._running: defaultdict[str, RunningEstimate] = defaultdict(RunningEstimate)

    def add(self, answers: Sequence[AnswerRow]) -> None:
        """Add all answers about one clip."""
        by_cell: defaultdict[tuple[str, str], list[AnswerRow]] = defaultdict(list)
        for answer in answers:
            by_cell[answer.benchmark, answer.cell].append(answer)
        sums: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
        for (benchmark, _), own in by_cell.items():
            metric = facts_of(benchmark).metrics[0]
            counts, values = metric.count(_questions(own))
            sums[metric.name].append((float(values[counts].sum()), int(counts.sum())))
        for name, parts in sums.items():
            self._running[name].add(sum(total for total, _ in parts), sum(n for _, n in parts))

    def metrics(self) -> dict[str, float]:
        """Metric name in MLflow -> value."""
        values: dict[str, float] = {}
        for name, running in self._running.items():
            if (whole := running.value()) is not None:
                values[name] = values[f"live/{name}"] = whole.value
                values[f"live/{name}_low"], values[f"live/{name}_high"] = whole.low, whole.high
        return values


def _questions(answers: Sequence[AnswerRow]) -> Questions:
    """Convert the answers about one clip in one cell for `Metric.count`."""
    ok = np.array([answer.status == "ok" for answer in answers], bool)
    right = ok & np.array([bool(answer.correct) for answer in answers], bool)
    stated = [answer.score for answer in answers]
    scores = [float(r) if s is None else float(s) for r, s in zip(right, stated, strict=True)]
    return Questions(
        np.array([a.answer is not None or a.correct is not None for a in answers]),
        right,
        np.where(ok, scores, 0.0),
        np.zeros(len(answers), np.int64),
        [read_groups(answer.groups) for answer in answers],
        np.arange(len(answers)),
    )


class RunningNumbers:
    """Running sums over the finished clips of this attempt, in constant memory.

    Args:
        board: Board on which the stages report their progress.
    """

    def __init__(self, board: JobBoard) -> None:
        self._board = board
        self._scores = LiveScores()
        self.clips = self.failed_clips = self.hits = self.answers = self.tokens = 0
        self._failures: Counter[str] = Counter()
        self._last: tuple[float, int, int, dict[str, float]] = (0.0, 0, 0, {})

    def add(self, result: Result, num_caches: int) -> None:
        """Add one finished clip."""
        self.clips += 1
        self.failed_clips += result.has_failed
        if result.status == "ok":
            self.hits += num_caches - result.num_misses
        else:
            self._failures[result.status] += 1
        for answer in result.answers:
            self.answers += 1
            self.tokens += (answer.prompt_tokens or 0) + (answer.new_tokens or 0)
            if result.status == "ok" and answer.has_failed:
                self._failures[answer.status] += 1
        self._scores.add(result.answers)

    def metrics(self, now_s: float) -> dict[str, float]:
        """Metric name in MLflow -> value.

        Args:
            now_s: Seconds since the job started; rates are computed since the previous call.
        """
        before_s, clips, tokens, busy = self._last
        passed = max(now_s - before_s, 1e-6)
        states = self._board.states()
        values = {
            **self._scores.metrics(),  # first, as the UI lists metrics in this order
            "live/clips": self.clips,
            "live/failed_clips": self.failed_clips,
            "live/answers": self.answers,
            "live/clips_per_s": (self.clips - clips) / passed,
            "live/tokens_per_s": (self.tokens - tokens) / passed,
            "live/cache_hits": self.hits,
            **{f"failures/{metric_name(status)}": n for status, n in self._failures.items()},
            **_stage_metrics(states, busy, passed),
        }
        busy_now = {stage: state.count.busy_s for stage, state in states.items()}
        self._last = (now_s, self.clips, self.tokens, busy_now)
        return {name: float(value) for name, value in values.items()}


def _stage_metrics(
    states: Mapping[str, StageState], busy: Mapping[str, float], passed: float
) -> dict[str, float]:
    """Queue lengths, busy shares and counts of finished clips of the stages."""
    values: dict[str, float] = {}
    for stage, state in states.items():
        values[f"queue/{stage}"] = state.waiting
        values[f"stage_clips/{stage}"] = state.count.finished
        slots = max(state.slots, 1)
        share = (state.count.busy_s - busy.get(stage, 0.0)) / (passed * slots)
        if share <= 0:  # clips report their time when finished; use the number of clips in progress
            share = (state.count.started - state.count.finished) / slots
        values[f"busy_share/{stage}"] = max(0.0, min(1.0, share))
    return values
