"""Run the stages on Ray Data; the only module that uses its API.

    misses -> decode_video (tasks) -> CompressVideo (actors) -.
    stored features ----------------'                         |
    hits -----------------------------------------------------+-> AnswerQuestions (actors) ->
    results

A stage that is a function runs as tasks, a stage that is a class runs as actors. Rows are Arrow
blocks between the stages and dictionaries inside them.
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
from pipeline.executors.attempts import JobLedger
from pipeline.executors.cluster import living_nodes
from pipeline.executors.lost_nodes import RoomWatch
from pipeline.executors.ray_reports import DriverReport, mirrored, slots_of
from pipeline.executors.workers import StageActor, task
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.resources.pools import ActorPool, preflight
from pipeline.rows import Result, clips_in, filled, output_of, results_in
from pipeline.runtime.background import iterate
from pipeline.settings import Settings
from tango_core.code_identity import modules_to_send

# Decoded clips are megabytes each: larger blocks would only make a lost worker lose more.
_MAX_CLIPS_PER_BLOCK = 8
# Without frames. What is in a batch is answered together, so larger ones keep a GPU busy.
_MAX_HITS_PER_BLOCK = 64
# Every block costs the driver about 1 ms and 20 KB, before anything starts and until all is done.
_MAX_CLIPS_AT_ONCE = 100_000
# The last line of a stack trace, without the exception's module; the first of a chain is its cause.
_RAISED = re.compile(r"^(?!ray\.)(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def stream(plan: Plan, settings: Settings, board: JobBoard | None = None) -> Iterator[Result]:
    """Run the plan on the connected cluster; yield a result per clip as it is finished.

    Args:
        plan: What to do.
        settings: How to run it.
        board: Shows what the stages have done while they work.

    Raises:
        WorkerError: If a stage cannot run at all.
        ClusterError: If a node was lost and none came in its place.
    """
    _silence(DataContext.get_current())
    board = board or JobBoard()
    board.slots = slots_of(settings.pools, [stage.name for stage in stages_of(plan)])
    report = DriverReport(plan, board)
    ledger = start_ledger()
    names = [stage.name for stage in stages_of(plan)]
    watch = RoomWatch(
        living_nodes, lambda nodes: preflight(settings.pools, nodes, names), settings.lost_timeout_s
    )
    try:
        with mirrored(ledger, board, report):
            for result_row in _in_parts(plan, settings, ledger, watch):
                report.result(result_row)
                yield result_row
    except RayError as error:
        raise WorkerError(_reason(error)) from error
    finally:
        ray.kill(ledger)


def _in_parts(plan: Plan, settings: Settings, ledger: Any, watch: RoomWatch) -> Iterator[Result]:
    """At most so many clips at once."""
    for start in range(0, plan.clips.num_rows, _MAX_CLIPS_AT_ONCE):
        part = replace(plan, clips=plan.clips.slice(start, _MAX_CLIPS_AT_ONCE))
        with _own_code_by_value(part):
            # Ray waits without end for a node that does not come back; this thread does not.
            for row in iterate(partial(_execute, part, settings, ledger), watch):
                watch.progressed()
                yield row


@contextmanager
def _own_code_by_value(plan: Plan) -> Iterator[None]:
    """While active, classes that a plan takes from a user's files are pickled with their code.

    A worker otherwise imports them by name, which fails where the file is not: on another machine,
    or below another directory. Installed packages are still imported by name.
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
    """One dataset from its first block to its last; its actors end with it."""
    dataset = build(plan, settings, ledger)
    if dataset is None:
        return
    # Prefetching would hold every block back until the next one is finished.
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from results_in(block) if plan.answer else map(filled, clips_in(block))


def _reason(error: RayError) -> str:
    """What the worker itself raised, in one line; Ray only hands it on as text."""
    raised = _RAISED.search(str(error))
    return raised.group(1) if raised else str(error).strip().splitlines()[-1]


def _silence(context: DataContext) -> None:
    """Leave the terminal to the job's own progress; Ray's log files keep everything."""
    for handler in logging.getLogger("ray.data").handlers:
        if handler.name == "console":
            handler.setLevel(logging.CRITICAL)
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # It would advise to raise the one byte that `_append` reserves on purpose.
    detectors = context.issue_detectors_config.detectors
    context.issue_detectors_config.detectors = [d for d in detectors if "Memory" not in d.__name__]


def start_ledger() -> Any:
    """A ledger as an actor that takes no CPU, on the driver's node: no other node's loss ends it.

    If its process dies, it starts again with nothing counted.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return ray.remote(**options)(JobLedger).options(scheduling_strategy=here).remote()


def build(plan: Plan, settings: Settings, ledger: Any) -> Dataset | None:
    """The lazy dataset behind `stream`; `None` if there is nothing to do."""
    dataset: Dataset | None = None
    waiting, columns = plan.clips, plan.clips.schema
    for stage in stages_of(plan):
        takes = stage.taken(waiting)
        joining, waiting = waiting.filter(takes), waiting.filter(pc.invert(takes))
        # Ray holds back rows until they fill a batch: what other stages hand on is in small ones.
        batch_size = _MAX_CLIPS_PER_BLOCK
        largest = _MAX_HITS_PER_BLOCK if stage.on_hits else _MAX_CLIPS_PER_BLOCK
        if dataset is None and stage.on_hits:
            workers = _workers(stage, settings)
            largest = batch_size = _size(joining.num_rows, workers, _MAX_HITS_PER_BLOCK)
        if joining.num_rows:
            own = _blocks(_with_columns(joining, columns), largest)
            dataset = own if dataset is None else dataset.union(own)
        if dataset is not None:
            dataset = _append(dataset, stage, plan, settings, ledger, batch_size)
        columns = output_of(stage)
    return _passed_on(dataset, waiting, columns)


def _with_columns(clips: pa.Table, columns: pa.Schema) -> pa.Table:
    """Clips as the stage before would have handed them on, had it had anything to do."""
    for column in columns:
        if column.name not in clips.column_names:
            clips = clips.append_column(column, pa.nulls(clips.num_rows, column.type))
    return clips.select(columns.names)


def _passed_on(dataset: Dataset | None, clips: pa.Table, columns: pa.Schema) -> Dataset | None:
    """A dataset with the clips that no stage takes, in a job that only fills caches."""
    if not clips.num_rows:
        return dataset
    own = _blocks(_with_columns(clips, columns), _MAX_HITS_PER_BLOCK)
    return own if dataset is None else dataset.union(own)


def _append(
    dataset: Dataset, stage: Stage, plan: Plan, settings: Settings, ledger: Any, batch_size: int
) -> Dataset:
    """Append a stage as its pool says: as tasks, or in actors, which get so many rows at once."""
    pool = getattr(settings.pools, stage.name)
    arguments = stage.arguments(plan, settings)
    if not isinstance(pool, ActorPool):
        return dataset.map_batches(
            task(stage, ledger),
            fn_kwargs=arguments,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=pool.num_cpus,
            resources=pool.resources or None,
        )
    return dataset.map_batches(
        # Ray shows the name of the class in its dashboard and in the titles of processes.
        type(stage.load().__name__, (StageActor,), {}),
        # Never `None`, which Ray refuses beside GPUs.
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=_strategy(pool),
        fn_constructor_kwargs={
            "stage": stage,
            "arguments": arguments,
            "ledger": ledger,
            "pool": pool,
        },
        num_cpus=pool.num_cpus,
        num_gpus=pool.num_gpus,
        resources=pool.resources or None,
        # One byte, so that Ray never takes decode tasks and these actors for the same kind of
        # worker and fuses them.
        memory=1,
    )


def _strategy(pool: ActorPool) -> ActorPoolStrategy:
    """A fixed number of actors, or one that Ray Data moves between two bounds."""
    if pool.least == pool.most:
        return ActorPoolStrategy(size=pool.least)
    return ActorPoolStrategy(min_size=pool.least, max_size=pool.most)


def _workers(stage: Stage, settings: Settings) -> int:
    """How many workers of a stage there can be at once."""
    pool = getattr(settings.pools, stage.name)
    return pool.most if isinstance(pool, ActorPool) else _num_cpus()


def _num_cpus() -> int:
    """CPUs of the cluster, at least one."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _blocks(clips: pa.Table, largest: int = _MAX_CLIPS_PER_BLOCK) -> Dataset:
    """Small blocks, so that clips start to flow at once and every worker gets some."""
    size = _size(clips.num_rows, _num_cpus(), largest)
    # Not `from_arrow`: it starts a task per block, only to look at what is known here.
    return ray.data.from_blocks(
        [clips.slice(start, size) for start in range(0, clips.num_rows, size)]
    )


def _size(num_clips: int, workers: int, largest: int) -> int:
    """Clips per block, so that each worker gets about four blocks."""
    return min(largest, max(1, math.ceil(num_clips / (4 * workers))))
