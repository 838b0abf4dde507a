"""Counters of the stages: clips in, clips out, failures and busy time.

They are read by the driver, which shows and logs them (`StageBoard`), and on Ray by Prometheus
(`METRICS`, exported by `pipeline/executors/workers.py`). This module imports neither Ray nor a
tracking server.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.clips import Clip, stages_of
from pipeline.rows import Result

if TYPE_CHECKING:
    from pipeline.plan import Plan

Record = Clip | Result
"""Output of a stage: a clip, or a result from the last stage."""

Stream = Callable[[Iterable[Clip]], Iterator[Any]]
"""Function that consumes clips as it has capacity, and yields each one when it is finished."""

SKIPPED = "skipped"
"""Status under which a stage counts a clip that failed in an earlier stage and was passed on."""


@dataclass(frozen=True)
class Metric:
    """A metric emitted by Ray's workers.

    Attributes:
        name: Name without Ray's prefix `ray_` and the suffix `_total` of counters.
        kind: Prometheus metric type.
        description: Help text.
        tags: Labels; never the id of a clip, which would create a series per clip.
        boundaries: Upper bounds of a histogram's buckets, in seconds.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def exported(self) -> tuple[str, ...]:
        """Names of the series in Prometheus."""
        name = f"ray_{self.name}"
        if self.kind == "histogram":
            return tuple(f"{name}_{part}" for part in ("bucket", "sum", "count"))
        return (f"{name}_total",) if self.kind == "counter" else (name,)


STARTED = Metric("tango_stage_clips_started", "counter", "Clips a stage took.", ("stage",))
FINISHED = Metric(
    "tango_stage_clips_finished", "counter", "Clips a stage gave back.", ("stage", "status")
)
BUSY = Metric("tango_stage_busy_seconds", "counter", "Seconds of work in a stage.", ("stage",))
SECONDS = Metric(
    "tango_stage_seconds",
    "histogram",
    "Seconds that a stage worked on one clip.",
    ("stage",),
    (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
SLOTS = Metric("tango_stage_slots", "gauge", "Clips a stage can work on at once.", ("stage",))
EXPECTED = Metric("tango_stage_clips_expected", "gauge", "Clips of the job.", ("stage",))
ANSWERS = Metric("tango_answers", "counter", "Answers by their status.", ("status",))
TOKENS = Metric(
    "tango_tokens",
    "counter",
    "Tokens of answered questions: visual ones before and after the method, of the prompt, new.",
    ("kind",),
)
TOKEN_SETS = Metric(
    "tango_token_sets", "counter", "Token sets found in a cache or computed.", ("source",)
)

METRICS = (STARTED, FINISHED, BUSY, SECONDS, SLOTS, EXPECTED, ANSWERS, TOKENS, TOKEN_SETS)


def stream_of(stage: Callable[[Clip], Record]) -> Stream:
    """The `stream` method of a stage if it has one, else a function that maps clip by clip."""
    own: Stream | None = getattr(stage, "stream", None)
    return own or (lambda clips: map(stage, clips))


class Metered:
    """Wraps a stage and reports every clip.

    Args:
        run: Function of the stage on a stream of clips (`stream_of`).
        stage: Name of the stage.
        report: Receives the reports. If a stage works on several clips at once, the time between
            two results counts for the second one, so that the times sum to the stage's work.
    """

    def __init__(self, run: Stream, stage: str, report: StageBoard) -> None:
        self._run = run
        self._stage = stage
        self._report = report

    def __call__(self, rows: Iterable[Clip]) -> Iterator[Record]:
        """Process clips; the time spent waiting for input and for the consumer is not counted."""
        came_in: dict[tuple[str, str], str] = {}
        waited = 0.0

        def taken() -> Iterator[Clip]:
            nonlocal waited
            coming = iter(rows)
            while True:
                started = time.perf_counter()
                row = next(coming, None)
                waited += time.perf_counter() - started
                if row is None:
                    return
                came_in[row.name] = row.status
                self._report.started(self._stage)
                yield row

        begun = time.perf_counter()
        for done in self._run(taken()):
            seconds = time.perf_counter() - begun - waited
            before = came_in.pop(done.name, "ok")
            status = done.status if before == "ok" else SKIPPED
            self._report.finished(self._stage, seconds, status)
            yield done
            begun, waited = time.perf_counter(), 0.0


@dataclass(frozen=True)
class StageCount:
    """Counters of one stage.

    Attributes:
        started: Number of clips taken.
        finished: Number of clips finished.
        failed: Number of finished clips that failed in this stage.
        busy_s: Seconds of work, summed over the workers.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    busy_s: float = 0.0

    def __add__(self, other: StageCount) -> StageCount:
        """Add all counters."""
        return StageCount(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class StageState:
    """State of one stage for display.

    Attributes:
        count: Counters of the stage.
        expected: Number of clips that the stage will process in total.
        slots: Number of clips that it can process at once.
        waiting: Number of clips in its queue.
    """

    count: StageCount
    expected: int
    slots: float
    waiting: int


class StageBoard:
    """Thread-safe counters of all stages of a job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, StageCount] = {}

    def started(self, stage: str) -> None:
        """Record that a stage takes a clip."""
        self.add({stage: StageCount(started=1)})

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """Record that a stage has finished a clip."""
        failed = int(status not in ("ok", SKIPPED))
        self.add({stage: StageCount(finished=1, failed=failed, busy_s=seconds)})

    def add(self, counts: Mapping[str, StageCount]) -> None:
        """Add the counts of one worker since its last report."""
        with self._lock:
            for stage, count in counts.items():
                self._counts[stage] = self._counts.get(stage, StageCount()) + count

    def show(self, counts: Mapping[str, StageCount]) -> dict[str, StageCount]:
        """Replace the counts, by those of another board; returns the ones before."""
        with self._lock:
            before, self._counts = self._counts, dict(counts)
            return before

    def counts(self) -> dict[str, StageCount]:
        """Stage -> its counters."""
        with self._lock:
            return dict(self._counts)


class JobBoard(StageBoard):
    """The driver's board, which also knows how many clips each stage will process.

    Attributes:
        expected: Stage -> total number of clips; empty before the job starts.
        slots: Stage -> number of clips that it can process at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[str, int] = {}
        self.slots: dict[str, float] = {}

    def plan(self, plan: Plan) -> None:
        """Set the expected numbers of clips from the plan of a starting job."""
        import pyarrow.compute as pc

        self.expected = {
            stage.name: int(pc.sum(stage.taken(plan.clips)).as_py() or 0)
            for stage in stages_of(plan)
        }

    def states(self) -> dict[str, StageState]:
        """Stage -> its state, in the order of the pipeline."""
        counts, states = self.counts(), {}
        before = ready = 0  # clips expected by the stage before, and ready for this one
        for stage, expected in self.expected.items():
            # Fully cached clips enter the pipeline at the first stage that takes them.
            ready += max(0, expected - before)
            count = counts.get(stage, StageCount())
            slots, waiting = self.slots.get(stage, 1), max(0, ready - count.started)
            states[stage] = StageState(count, expected, slots, waiting)
            before, ready = expected, count.finished
        return states
