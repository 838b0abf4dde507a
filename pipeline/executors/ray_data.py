"""Run the stages on Ray Data; the only module that uses its API.

    misses -> decode_video (tasks) -> CompressVideo (actors) -.
    stored features ----------------'                         |
    hits -----------------------------------------------------+-> AnswerQuestions (actors) ->
    results

A stage that is a function runs as tasks, a stage that is a class runs as actors. Between the stages
clips are pickled in blocks.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray import cloudpickle
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.clips import Stage, stages_of
from pipeline.errors import WorkerError
from pipeline.executors.cluster import RoomWatch, living_nodes
from pipeline.executors.workers import (
    JobLedger,
    StageActor,
    mirrored,
    report_result,
    slots_of,
    task,
)
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.resources.pools import ActorPool, preflight
from pipeline.rows import Result, clips_in, filled, packed, unpacked
from pipeline.runtime.background import iterate
from pipeline.settings import Settings
from tango_core.code_identity import modules_to_send

# Decoded clips are megabytes each, and a lost worker loses its whole block.
_MAX_CLIPS_PER_BLOCK = 8
# Clips without frames. A batch is answered together, so larger ones keep a GPU busy.
_MAX_HITS_PER_BLOCK = 64
# Every block costs the driver about 1 ms and 20 KB from the start of a dataset to its end.
_MAX_CLIPS_AT_ONCE = 100_000
# Last line of a stack trace without the exception's module; the first of a chain is the cause.
_RAISED = re.compile(r"^(?!ray\.)(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def stream(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Run the plan on the connected cluster; yield a result per clip as it is finished.

    Args:
        plan: Plan of the job.
        settings: Settings of the executor.
        board: Board that shows the progress of the stages.

    Raises:
        WorkerError: If a stage cannot run at all.
        ClusterError: If a node was lost and not replaced.
    """
    _silence(DataContext.get_current())
    board = board or JobBoard()
    names = [stage.name for stage in stages_of(plan)]
    board.slots = slots_of(settings.pools, names)
    board.plan(plan)
    ledger = start_ledger()
    watch = RoomWatch(
        living_nodes, lambda nodes: preflight(settings.pools, nodes, names), settings.lost_timeout_s
    )
    try:
        with mirrored(ledger, board), _own_code_by_value(plan):
            for start in range(0, plan.clips.num_rows, _MAX_CLIPS_AT_ONCE):
                part = replace(plan, clips=plan.clips.slice(start, _MAX_CLIPS_AT_ONCE))
                # Ray would wait forever for a lost node; the watch ends the wait.
                for result in iterate(partial(_execute, part, settings, ledger), watch):
                    watch.progressed()
                    report_result(result, len(plan.caches))
                    yield result
    except RayError as error:
        raise WorkerError(_reason(error)) from error
    finally:
        ray.kill(ledger)


@contextmanager
def _own_code_by_value(plan: Plan) -> Iterator[None]:
    """While active, classes that a plan takes from a user's files are pickled with their code.

    By default a worker imports them by name, which fails if it does not have the file. Installed
    packages are still imported by name.
    """
    parts = [
        *plan.compressors.values(),
        *(planned.method.pruner for planned in plan.methods if planned.method.pruner is not None),
        *plan.protocols.values(),
    ]
    modules = {module.__name__: module for part in parts for module in modules_to_send(type(part))}
    for module in modules.values():
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules.values():
            cloudpickle.unregister_pickle_by_value(module)


def _execute(plan: Plan, settings: Settings, ledger: Any) -> Iterator[Result]:
    """Run one dataset; its actors end with it."""
    dataset = build(plan, settings, ledger)
    if dataset is None:
        return
    # Prefetching would hold every block back until the next one is finished.
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from unpacked(block) if plan.answer else map(filled, unpacked(block))


def _reason(error: RayError) -> str:
    """The error that the worker raised, in one line; Ray passes it on only as text."""
    raised = _RAISED.search(str(error))
    return raised.group(1) if raised else str(error).strip().splitlines()[-1]


def _silence(context: DataContext) -> None:
    """Keep Ray's output off the terminal; its log files contain everything."""
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            handler.setLevel(logging.CRITICAL)
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # It would recommend raising the one byte that `_append` reserves on purpose.
    detectors = context.issue_detectors_config.detectors
    context.issue_detectors_config.detectors = [d for d in detectors if "Memory" not in d.__name__]


def start_ledger() -> Any:
    """Start a ledger as an actor without CPUs, on the driver's node.

    If its process dies, it restarts with all counts at zero.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(**options)(JobLedger).options(scheduling_strategy=here).remote()


def build(plan: Plan, settings: Settings, ledger: Any) -> Dataset | None:
    """The lazy dataset behind `stream`; `None` if there is nothing to do."""
    dataset: Dataset | None = None
    waiting = plan.clips
    num_cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
    for stage in stages_of(plan):
        takes = stage.taken(waiting)
        joining, waiting = waiting.filter(takes), waiting.filter(pc.invert(takes))
        pool = getattr(settings.pools, stage.name)
        # Ray holds rows back until they fill a batch, so batches of clips from other stages are
        # small.
        batch_size = _MAX_CLIPS_PER_BLOCK
        size = _block_size(joining, num_cpus, stage.on_hits)
        if dataset is None and stage.on_hits:
            workers = pool.most if isinstance(pool, ActorPool) else num_cpus
            batch_size = _block_size(joining, workers, large=True)
            size = min(size, batch_size)
        if joining.num_rows:
            dataset = _with_blocks(dataset, joining, size)
        if dataset is not None:
            dataset = _append(dataset, stage, plan, settings, ledger, batch_size)
    if waiting.num_rows:  # clips that no stage takes, in a job that only fills caches
        size = _block_size(waiting, num_cpus, large=True)
        dataset = _with_blocks(dataset, waiting, size)
    return dataset


def _with_blocks(dataset: Dataset | None, clips: pa.Table, size: int) -> Dataset:
    """Add clips in blocks to a dataset."""
    parts = (clips.slice(start, size) for start in range(0, clips.num_rows, size))
    # Not `from_arrow`, which starts a task per block.
    own = ray.data.from_blocks([packed(clips_in(part)) for part in parts])
    return own if dataset is None else dataset.union(own)


def _append(
    dataset: Dataset, stage: Stage, plan: Plan, settings: Settings, ledger: Any, batch_size: int
) -> Dataset:
    """Append a stage, as tasks or as actors depending on its pool."""
    pool = getattr(settings.pools, stage.name)
    arguments = stage.arguments(plan, settings)
    options: dict[str, Any] = {"batch_format": "pyarrow", "num_cpus": pool.num_cpus}
    options |= {"resources": pool.resources or None}
    if not isinstance(pool, ActorPool):
        run = task(stage, ledger)
        return dataset.map_batches(run, fn_kwargs=arguments, batch_size=None, **options)
    return dataset.map_batches(
        # Ray shows the name of the class in its dashboard and in the titles of processes.
        type(stage.load().__name__, (StageActor,), {}),
        batch_size=batch_size,  # Ray refuses `None` for stages with GPUs
        compute=ActorPoolStrategy(min_size=pool.least, max_size=pool.most),
        fn_constructor_args=(stage, arguments, ledger, pool),
        num_gpus=pool.num_gpus,
        # One byte, so that decode tasks and these actors differ in resources and Ray never fuses
        # them.
        memory=1,
        **options,
    )


def _block_size(clips: pa.Table, workers: int, large: bool) -> int:
    """Clips per block, so that clips flow at once and each worker gets about four blocks."""
    largest = _MAX_HITS_PER_BLOCK if large else _MAX_CLIPS_PER_BLOCK
    return min(largest, max(1, math.ceil(int(clips.num_rows) / (4 * workers))))
