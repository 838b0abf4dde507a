"""Run a plan on Ray or in one process, with equal results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace

from pipeline.errors import StoreError, WorkerError
from pipeline.executors import local
from pipeline.executors.cluster import connected
from pipeline.metrics import JobBoard
from pipeline.plan import Plan, look_up
from pipeline.resources.devices import doubts
from pipeline.resources.pools import preflight
from pipeline.resources.sizing import pools_for
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.settings import Settings
from pipeline.stages.declarations import stages_of
from pipeline.storage.faults import NOT_BACK, PAUSES_S, pause, store_fault
from tango_core.types import NotFiniteError

IN_A_ROW = 3
"""Different clips that meet a fault of a store, with no success in between, before a job pauses."""
MOST_REPEATS = 2
"""Further attempts at a clip whose cache entries are lost; other jobs may remove entries, too."""
_TRIES = 3  # of a clip that meets a fault while others succeed
# Clips in a row for which a model computed NaN or infinity before the job stops.
_MOST_NOT_FINITE = 5

ClipName = tuple[str, str]
RunPlan = Callable[[Plan, Settings], Iterator[Result]]
"""Runs a plan; yields a result per clip as it is finished."""

logger = logging.getLogger(__name__)


def run(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Yield one result per clip of the plan, in the order in which clips are finished.

    Args:
        plan: What to do.
        settings: How to run it.
        board: Shows what the stages have done while they work.

    Raises:
        PoolError: If a pool does not fit the cluster.
        ClusterError: If the cluster cannot be reached.
        WorkerError: If a model computed NaN or infinity for several clips in a row.
    """
    if plan.clips.num_rows == 0:
        return
    if plan.features is not None:
        plan.features.cache.prepare()
    for cache in plan.caches.values():
        cache.prepare()
    executor = _on_ray if settings.executor == "ray" else local.stream
    in_a_row = 0
    for row in executor(plan, settings, board):
        yield row
        errors = [row.error] if row.error else [one["error"] for one in row.answers]
        is_nan = errors and all((e or "").startswith(NotFiniteError.__name__) for e in errors)
        in_a_row = in_a_row + 1 if is_nan else 0
        if in_a_row == _MOST_NOT_FINITE:
            raise WorkerError(f"the last {in_a_row} clips failed alike: {errors[0]}")


def _on_ray(plan: Plan, settings: Settings, board: JobBoard | None) -> Iterator[Result]:
    """The distributed executor; Ray is imported only here, because that takes seconds."""
    from pipeline.executors import ray_data

    with connected(settings.address, settings.start_timeout_s) as nodes:
        settings = replace(settings, pools=pools_for(settings.pools, nodes))
        names = [stage.name for stage in stages_of(plan)]
        preflight(settings.pools, nodes, names)
        for line in doubts(settings.device, settings.pools, nodes, names):
            logger.warning(line)
        yield from ray_data.stream(plan, settings, board)


def complete(
    run_plan: RunPlan, plan: Plan, settings: Settings, clock: Clock = SYSTEM_CLOCK
) -> Generator[Result, None, None]:
    """Run a plan until every clip has a result; a store that is away for a while fails no clip.

    A stage that meets an error of a store names it in its row (`store_fault`). These rows are held
    back. When clip after clip meets one, the attempt is ended, and after a wait the clips that are
    left are run once more. A clip that meets one again and again while others succeed is at fault
    itself: it fails alone. Clips whose cache entries were removed or damaged after the job was
    planned (`lost_entry`) are looked up in the caches and run once more, too.

    Args:
        run_plan: The executor.
        plan: What to do.
        settings: For the executor.
        clock: Waits.

    Yields:
        One result per clip.

    Raises:
        StoreError: If the store did not come back.
    """
    watch = _Watch()
    held: dict[ClipName, Result] = {}
    lost: set[ClipName] = set()
    repeats, left = MOST_REPEATS, plan
    while left.clips.num_rows:
        finished, fault = set[ClipName](), None
        results: Iterator[Result] = iter(())
        try:
            if lost:
                left, lost = _looked_up(left), set()
            results = run_plan(left, settings)
            for row in results:
                clip = row.name
                if row.lost_entry and repeats:
                    lost.add(clip)
                    continue
                if not row.store_fault:
                    watch.succeed()
                elif not watch.is_alone(clip):
                    held[clip], fault = row, row.store_fault
                    if len(watch.in_a_row) >= IN_A_ROW:
                        break
                    continue
                finished.add(clip)
                held.pop(clip, None)
                yield row
        except StoreError:
            raise
        except Exception as error:
            fault = store_fault(error, "the store")
            if fault is None or not watch.pauses:  # in an attempt that follows a fault
                raise
        finally:
            if isinstance(results, Generator):
                results.close()
        if len(finished) == left.clips.num_rows or (fault is None and not held and not lost):
            return  # what an executor kept to itself is found when answers are counted
        unfinished = lost | held.keys() if fault is None else None
        left = _without(left, finished, unfinished, last=held)
        repeats -= bool(lost)
        if fault is None and not held:
            continue
        if watch.pauses == len(PAUSES_S):
            # Only clips that met it again while all others succeeded are at fault themselves.
            others = left.clips.num_rows - len(held)
            if len(watch.in_a_row) >= IN_A_ROW or not watch.successes or others:
                raise StoreError(f"{fault}; {NOT_BACK}")
            yield from held.values()  # the last few, after others have succeeded
            return
        pause(str(fault), watch.pauses, clock)
        watch.pauses += 1
        watch.in_a_row.clear()


@dataclass
class _Watch:
    """Which clips met a fault, and what succeeded since.

    Attributes:
        successes: Clips that did not meet one.
        first_met: Clip -> successes when it met its first fault.
        met_again: Clip -> faults since others succeeded.
        in_a_row: Clips that met one since the last success.
        pauses: Waits since the last success.
    """

    successes: int = 0
    first_met: dict[ClipName, int] = field(default_factory=dict)
    met_again: dict[ClipName, int] = field(default_factory=dict)
    in_a_row: set[ClipName] = field(default_factory=set)
    pauses: int = 0

    def succeed(self) -> None:
        """A clip did not meet a fault."""
        self.successes += 1
        self.in_a_row.clear()
        self.pauses = 0

    def is_alone(self, clip: ClipName) -> bool:
        """Note a fault of a clip; whether it is the clip that is at fault."""
        if self.successes == self.first_met.setdefault(clip, self.successes):
            self.in_a_row.add(clip)
            return False
        self.met_again[clip] = self.met_again.get(clip, 0) + 1
        return self.met_again[clip] >= _TRIES - 1


def _looked_up(plan: Plan) -> Plan:
    """The same clips with what the caches hold of them now."""
    logger.info(
        "cache entries that %d clip(s) counted on were removed or damaged since the job was "
        "planned; they are computed again",
        plan.clips.num_rows,
    )
    needs = {name: compressor.needs for name, compressor in plan.compressors.items()}
    return replace(plan, clips=look_up(plan.clips, plan.caches, plan.features, needs))


def _without(
    plan: Plan,
    finished: set[ClipName],
    unfinished: set[ClipName] | None,
    last: dict[ClipName, Result],
) -> Plan:
    """The plan of the other clips; those that met a fault come last, so that others are tried.

    Args:
        plan: Of an attempt.
        finished: Clips with a result.
        unfinished: Clips to run again; `None` for all others.
        last: Those that met a fault.
    """
    columns = (plan.clips[key].to_pylist() for key in ("benchmark", "video_id"))
    names = list(enumerate(zip(*columns, strict=True)))
    left = [(i, n) for i, n in names if n not in finished and (not unfinished or n in unfinished)]
    order = sorted(left, key=lambda one: one[1] in last)
    return replace(plan, clips=plan.clips.take([index for index, _ in order]))
