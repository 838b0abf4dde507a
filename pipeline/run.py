"""Run a plan: on Ray, or in a plain loop with the same stages and equal results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from pipeline.errors import WorkerError
from pipeline.executors import local
from pipeline.executors.cluster import connected
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.resources.devices import doubts
from pipeline.resources.pools import preflight
from pipeline.resources.sizing import pools_for
from pipeline.rows import Row
from pipeline.settings import Settings
from pipeline.stages.declarations import stages_of
from tango_core.types import NotFiniteError

# Clips in a row for which a model computed NaN or infinity before the job stops.
_MOST_NOT_FINITE = 5
_NOT_FINITE = NotFiniteError.__name__

logger = logging.getLogger(__name__)


def run(
    plan: Plan,
    settings: Settings,
    board: JobBoard | None = None,
) -> Iterator[Row]:
    """Yield one `rows.RESULT` per clip of the plan, in the order in which clips are finished.

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
    yield from _while_finite(
        _on_ray(plan, settings, board)
        if settings.executor == "ray"
        else local.stream(plan, settings, board)
    )


def _while_finite(results: Iterator[Row]) -> Iterator[Row]:
    """Pass results on; stop the job when a model computes NaN for one clip after the other."""
    in_a_row = 0
    for row in results:
        yield row
        errors = [row["error"]] if row["error"] else [one["error"] for one in row["answers"]]
        failed = errors and all((error or "").startswith(_NOT_FINITE) for error in errors)
        in_a_row = in_a_row + 1 if failed else 0
        if in_a_row == _MOST_NOT_FINITE:
            raise WorkerError(f"the last {in_a_row} clips failed alike: {errors[0]}")


def _on_ray(plan: Plan, settings: Settings, board: JobBoard | None) -> Iterator[Row]:
    """The distributed executor; Ray is imported only here, because that takes seconds."""
    from pipeline.executors import ray_data

    with connected(settings.address, settings.start_timeout_s) as nodes:
        settings = replace(settings, pools=pools_for(settings.pools, nodes))
        names = [stage.name for stage in stages_of(plan)]
        preflight(settings.pools, nodes, names)
        for line in doubts(settings.device, settings.pools, nodes, names):
            logger.warning(line)
        yield from ray_data.stream(plan, settings, board)
