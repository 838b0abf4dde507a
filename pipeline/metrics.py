"""Counters of the stages: clips in, clips out, failures and busy time.

Two readers: the driver, which shows a line per stage and logs them (`StageBoard`), and Prometheus
where Ray runs (`METRICS`, made into Ray's instruments by `pipeline/executors/ray_reports.py`). This
module imports neither Ray nor a tracking server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from pipeline.resources.node_usage import Reading
from pipeline.rows import Clip
from pipeline.stages.declarations import stages_of
from pipeline.streams import Record, Stream

if TYPE_CHECKING:
    from pipeline.plan import Plan

SKIPPED = "skipped"
"""Status under which a stage counts a clip that had failed before and was only passed on."""


@dataclass(frozen=True)
class Metric:
    """One metric as Ray's workers emit it.

    Attributes:
        name: Without the prefix `ray_` that Ray adds, and the suffix `_total` of its counters.
        kind: Of Prometheus.
        description: Shown beside it.
        tags: Labels; never the id of a clip, which would make a series per clip.
        boundaries: Upper ends of a histogram's buckets, in seconds.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()

    @property
    def exported(self) -> tuple[str, ...]:
        """The names that Prometheus sees."""
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


class StageReport(Protocol):
    """Where a stage reports."""

    def started(self, stage: str) -> None:
        """A clip was taken."""
        ...

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """A clip was given back after this time, with this status."""
        ...


class Metered:
    """A stage that reports every clip.

    Args:
        run: Turns rows into rows (`streams.stream_of`).
        stage: Its name.
        report: Is told. Of a stage that works on several clips at once, the time since it gave back
            the last clip counts for the next one, so that all times together are its work.
    """

    def __init__(self, run: Stream, stage: str, report: StageReport) -> None:
        self._run = run
        self._stage = stage
        self._report = report

    def __call__(self, rows: Iterable[Clip]) -> Iterator[Record]:
        """Many clips; the time that they take to come, or to be taken away, is not the stage's."""
        came_in: dict[tuple[str, str], str] = {}
        waited = 0.0

        def taken() -> Iterator[Clip]:
            nonlocal waited
            coming = iter(rows)
            while True:
                asked = time.perf_counter()
                row = next(coming, None)
                waited += time.perf_counter() - asked
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
    """What one stage has done so far.

    Attributes:
        started: Clips it took.
        finished: Clips it gave back.
        failed: Of those, clips that failed here.
        busy_s: Seconds of work, summed over the workers.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    busy_s: float = 0.0

    def __add__(self, other: StageCount) -> StageCount:
        """The sum of both."""
        mine, more = asdict(self), asdict(other)
        return StageCount(**{name: mine[name] + more[name] for name in mine})


@dataclass(frozen=True)
class StageState:
    """One stage as a person sees it.

    Attributes:
        count: What it has done.
        expected: Clips that it will have taken at the end.
        slots: Clips it can work on at once.
        waiting: Clips that are ready for it.
    """

    count: StageCount
    expected: int
    slots: float
    waiting: int


class StageBoard:
    """Counts of all stages of a job; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, StageCount] = {}

    def started(self, stage: str) -> None:
        """See `StageReport`."""
        self.add({stage: StageCount(started=1)})

    def finished(self, stage: str, seconds: float, status: str) -> None:
        """See `StageReport`."""
        failed = int(status not in ("ok", SKIPPED))
        self.add({stage: StageCount(finished=1, failed=failed, busy_s=seconds)})

    def add(self, counts: Mapping[str, StageCount]) -> None:
        """Take what one worker has counted since its last report."""
        with self._lock:
            for stage, count in counts.items():
                self._counts[stage] = self._counts.get(stage, StageCount()) + count

    def take(self) -> dict[str, StageCount]:
        """Give the counts away and begin at nothing."""
        with self._lock:
            counts, self._counts = self._counts, {}
            return counts

    def counts(self) -> dict[str, StageCount]:
        """Stage -> what it has done so far."""
        with self._lock:
            return dict(self._counts)

    def show(self, counts: Mapping[str, StageCount]) -> None:
        """Replace the counts by those of another board."""
        with self._lock:
            self._counts = dict(counts)


@dataclass
class JobBoard(StageBoard):
    """The board of the driver: also knows how many clips each stage will see.

    Attributes:
        expected: Stage -> clips that it will have taken at the end; empty before the job starts.
        slots: Stage -> clips it can work on at once.
        readings: How busy the nodes of a cluster are.
    """

    expected: dict[str, int] = field(default_factory=dict)
    slots: dict[str, float] = field(default_factory=dict)
    readings: Sequence[Reading] = ()

    def __post_init__(self) -> None:
        """Begin with nothing counted."""
        super().__init__()

    def plan(self, plan: Plan) -> None:
        """Take over the numbers of clips of a job that starts."""
        self.expected = expected_clips(plan)

    def states(self) -> dict[str, StageState]:
        """Stage -> its state, in the order of the pipeline."""
        counts, states = self.counts(), {}
        ready: int | None = None
        for stage, expected in self.expected.items():
            count = counts.get(stage, StageCount())
            waiting = (expected if ready is None else ready) - count.started
            states[stage] = StageState(count, expected, self.slots.get(stage, 1), max(0, waiting))
            # Clips that every cache holds wait at the first stage that takes them.
            ready = count.finished + self._joining(stage)
        return states

    def _joining(self, stage: str) -> int:
        """Clips that enter behind a stage, because it had nothing to do for them."""
        names = list(self.expected)
        after = [self.expected[name] for name in names[names.index(stage) + 1 :]][:1]
        return max(0, after[0] - self.expected[stage]) if after else 0


def expected_clips(plan: Plan) -> dict[str, int]:
    """Stage -> clips of a plan that go through it."""
    import pyarrow.compute as pc

    return {
        stage.name: int(pc.sum(stage.taken(plan.clips)).as_py() or 0) for stage in stages_of(plan)
    }
