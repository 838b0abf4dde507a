"""Run a plan on Ray or in one process, with the same results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace

from pipeline.clips import stages_of
from pipeline.errors import StoreError, WorkerError
from pipeline.executors import local
from pipeline.executors.cluster import connected
from pipeline.metrics import JobBoard
from pipeline.plan import Plan, look_up
from pipeline.resources.pools import doubts, preflight
from pipeline.rows import Result
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.settings import Settings, pools_for
from pipeline.storage.objects import NOT_BACK, PAUSES_S, pause, store_fault
from tango_core.types import NotFiniteError

IN_A_ROW = 3
"""Number of different clips with storage errors in a row after which a job pauses."""
MOST_REPEATS = 2
"""Retries of clips whose cache entries are lost, e.g. because other jobs remove entries."""
_TRIES = 3  # attempts of a clip that has storage errors while other clips succeed
# Number of clips in a row with NaN or infinity in the model's outputs after which the job stops.
_MOST_NOT_FINITE = 5

ClipName = tuple[str, str]
RunPlan = Callable[[Plan, Settings], Iterator[Result]]
"""Runs a plan; yields a result per clip as it is finished."""

logger = logging.getLogger(__name__)


def run(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Run a plan; returns an iterator over one result per clip, in the order of completion.

    Args:
        plan: Plan of the job.
        settings: Settings of the executor.
        board: Board on which the stages report their progress.

    Raises:
        PoolError: If a pool does not fit the cluster.
        ClusterError: If the cluster cannot be reached.
    """
    if plan.clips.num_rows == 0:
        return iter(())
    if plan.features is not None:
        plan.features.cache.prepare()
    for cache in plan.caches.values():
        cache.prepare()
    return (_on_ray if settings.executor == "ray" else local.stream)(plan, settings, board)


def _on_ray(plan: Plan, settings: Settings, board: JobBoard | None) -> Iterator[Result]:
    """Run a plan on Ray, which is imported only here because the import takes seconds."""
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
    """Run a plan until every clip has a result; temporary storage errors fail no clip.

    Stages report storage errors in `store_fault`; such results are not yielded yet. If several
    clips in a row have storage errors, the attempt ends, and after a pause the remaining clips are
    run again. A clip that repeatedly has storage errors while others succeed fails on its own.
    Clips whose cache entries were removed or damaged after planning (`lost_entry`) are looked up
    again in the caches and rerun.

    Args:
        run_plan: The executor.
        plan: Plan of the job.
        settings: Settings of the executor.
        clock: Clock for the pauses.

    Yields:
        One result per clip.

    Raises:
        StoreError: If the store is still unavailable after all pauses.
        WorkerError: If a model computed NaN or infinity for several clips in a row.
    """
    watch = _Watch()
    not_finite_in_a_row = 0
    repeats, left = MOST_REPEATS, plan
    while left.clips.num_rows:
        finished = set[ClipName]()
        held: dict[ClipName, Result] = {}
        lost: set[ClipName] = set()
        fault: str | None = None
        results: Iterator[Result] = iter(())
        try:
            results = run_plan(left, settings)
            for row in results:
                if row.lost_entry and repeats:
                    lost.add(row.name)
                    continue
                if not row.store_fault:
                    watch.succeed()
                elif not watch.is_alone(row.name):
                    held[row.name], fault = row, row.store_fault
                    if len(watch.in_a_row) >= IN_A_ROW:
                        break
                    continue
                finished.add(row.name)
                yield row
                not_finite = _not_finite(row)
                not_finite_in_a_row = not_finite_in_a_row + 1 if not_finite else 0
                if not_finite_in_a_row == _MOST_NOT_FINITE:
                    same = f"the last {_MOST_NOT_FINITE} clips failed with the same error"
                    raise WorkerError(f"{same}: {not_finite}")
        except (StoreError, WorkerError):
            raise
        except Exception as error:
            fault = store_fault(error, "the store")
            if fault is None or not watch.pauses:  # retry only after an earlier storage error
                raise
        finally:
            if isinstance(results, Generator):
                results.close()
        if fault is None and not lost:
            return  # results that an executor lost are detected when answers are counted
        # After a storage error the attempt may have ended before its last clip.
        left = _left(left, finished if fault else None, lost, held)
        if fault:
            if watch.pauses == len(PAUSES_S):
                # The store works again if all other clips succeeded; then only these clips fail.
                others = left.clips.num_rows - len(held)
                if len(watch.in_a_row) >= IN_A_ROW or not watch.successes or others:
                    raise StoreError(f"{fault}; {NOT_BACK}")
                yield from held.values()  # the last few clips, while others have succeeded
                return
            pause(fault, watch.pauses, clock)
            watch.pauses += 1
            watch.in_a_row.clear()
        if lost:
            repeats -= 1
            logger.info("cache entries of %d clip(s) are lost and recomputed", len(lost))
            clips = look_up(left.clips, left.caches, left.features, left.compressors)
            left = replace(left, clips=clips)


def _not_finite(result: Result) -> str | None:
    """The error of a clip whose model computed only NaN or infinity; `None` for other clips."""
    errors = [result.error] if result.error else [answer.error for answer in result.answers]
    is_nan = all((error or "").startswith(NotFiniteError.__name__) for error in errors)
    return errors[0] if errors and is_nan else None


@dataclass
class _Watch:
    """Tracks which clips have storage errors, and which clips succeeded since.

    Attributes:
        successes: Number of clips without a storage error.
        met: Clip -> values of `successes` at its storage errors.
        in_a_row: Clips with storage errors since the last success.
        pauses: Number of pauses since the last success.
    """

    successes: int = 0
    met: dict[ClipName, list[int]] = field(default_factory=dict)
    in_a_row: set[ClipName] = field(default_factory=set)
    pauses: int = 0

    def succeed(self) -> None:
        """Record a clip without a storage error."""
        self.successes += 1
        self.in_a_row.clear()
        self.pauses = 0

    def is_alone(self, clip: ClipName) -> bool:
        """Record a storage error of a clip; return whether only this clip is affected."""
        met = self.met.setdefault(clip, [])
        met.append(self.successes)
        self.in_a_row.add(clip)
        return sum(successes > met[0] for successes in met) >= _TRIES - 1


def _left(
    plan: Plan, finished: set[ClipName] | None, lost: set[ClipName], last: dict[ClipName, Result]
) -> Plan:
    """Plan of the remaining clips; those with storage errors come last, so that others run first.

    Args:
        plan: Plan of the previous attempt.
        finished: Clips with a result; `None` if only `lost` clips run again.
        lost: Clips whose cache entries are lost.
        last: Clips with storage errors.
    """
    columns = (plan.clips[key].to_pylist() for key in ("benchmark", "video_id"))
    names = [*zip(*columns, strict=True)]
    again = lost if finished is None else set(names) - finished
    left = [index for index, name in enumerate(names) if name in again]
    left.sort(key=lambda index: names[index] in last)
    return replace(plan, clips=plan.clips.take(left))
