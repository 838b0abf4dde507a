"""The wiring of the stages in Ray Data; the only module that knows its API.

    misses -> decode_video (tasks) -> CompressVideo (actors) -.
    hits -----------------------------------------------------+-> AnswerQuestions (actors) ->
    results

A stage that holds nothing runs as tasks, a stage that holds a model runs as actors. Rows are Arrow
blocks between the stages and dictionaries inside them.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data import ActorPoolStrategy, DataContext, Dataset
from ray.exceptions import RayError

from pipeline.errors import WorkerError
from pipeline.executors.attempts import start_ledger, too_many
from pipeline.executors.by_value import own_code_by_value
from pipeline.plan import Plan
from pipeline.pools import ActorPool
from pipeline.rows import DECODED, ENCODED, RESULT, Row, to_table
from pipeline.settings import Settings, answer_arguments, compress_arguments, decode_arguments
from pipeline.stages import answer, compress, decode

# Decoded clips are megabytes each: larger blocks would only make a lost worker lose more.
_MAX_CLIPS_PER_BLOCK = 8
_MAX_HITS_PER_BLOCK = 64
# Every block costs the driver about 1 ms and 20 KB, before anything starts and until all is done.
_MAX_CLIPS_AT_ONCE = 100_000
# The last line of a stack trace, without the exception's module; the first of a chain is its cause.
_RAISED = re.compile(r"^(?!ray\.)(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def stream(plan: Plan, settings: Settings) -> Iterator[Row]:
    """Run the plan on the connected cluster; yield a `rows.RESULT` per clip as it is finished.

    Raises:
        WorkerError: If a stage cannot run at all.
    """
    _silence(DataContext.get_current())
    ledger = start_ledger()
    try:
        for start in range(0, plan.clips.num_rows, _MAX_CLIPS_AT_ONCE):
            part = replace(plan, clips=plan.clips.slice(start, _MAX_CLIPS_AT_ONCE))
            with own_code_by_value(part):
                yield from _execute(part, settings, ledger)
    except RayError as error:
        raise WorkerError(_reason(error)) from error
    finally:
        ray.kill(ledger)


def _execute(plan: Plan, settings: Settings, ledger: Any) -> Iterator[Row]:
    """One dataset from its first block to its last; its actors end with it."""
    dataset = build(plan, settings, ledger)
    if dataset is None:
        return
    # Prefetching would hold every block back until the next one is finished.
    for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in block.to_pylist():
            yield row if plan.answer else answer.result(row, [])


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
    # It would advise to raise the one byte that `_actors` reserves on purpose.
    detectors = context.issue_detectors_config.detectors
    context.issue_detectors_config.detectors = [d for d in detectors if "Memory" not in d.__name__]


def build(plan: Plan, settings: Settings, ledger: Any) -> Dataset | None:
    """The lazy dataset behind `stream`; `None` if there is nothing to do."""
    is_hit = pc.equal(pc.list_value_length(plan.clips["missing"]), 0)
    hits, misses = plan.clips.filter(is_hit), plan.clips.filter(pc.invert(is_hit))
    parts = []
    if misses.num_rows:
        decoded = _blocks(misses).map_batches(
            decode_video,
            fn_kwargs=decode_arguments(plan, settings),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=settings.pools.decode.num_cpus,
        )
        arguments = {"arguments": compress_arguments(plan, settings), "ledger": ledger}
        parts.append(_actors(decoded, CompressVideo, settings.pools.compress, arguments))
    if hits.num_rows:
        for column in ENCODED:
            if column.name not in hits.column_names:
                hits = hits.append_column(column, pa.nulls(hits.num_rows, column.type))
        parts.append(_blocks(hits.select(ENCODED.names), _MAX_HITS_PER_BLOCK))
    if not parts:
        return None
    encoded = parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]
    if not plan.answer:
        return encoded
    arguments = {"arguments": answer_arguments(plan, settings), "ledger": ledger}
    return _actors(encoded, AnswerQuestions, settings.pools.answer, arguments)


class _OnBlocks:
    """Runs a stage on Arrow blocks, with a bound on how often one clip may kill the process."""

    def __init__(
        self, stage: Callable[[Row], Row], ledger: Any, schema: pa.Schema, failure: str
    ) -> None:
        self._stage = stage
        self._ledger = ledger
        self._schema = schema
        self._failure = failure

    def __call__(self, block: pa.Table) -> pa.Table:
        return to_table(map(self._one, block.to_pylist()), self._schema)

    def _one(self, row: Row) -> Row:
        key = "|".join((self._failure, row["benchmark"], row["video_id"]))
        attempt = ray.get(self._ledger.begin.remote(key))
        done = self._stage(too_many(attempt, row, self._failure) or row)
        # Waited for: a process that is killed by the next clip must not leave this one as begun.
        ray.get(self._ledger.end.remote(key))
        return done


class CompressVideo(_OnBlocks):
    """`stages.compress.CompressVideo` as a Ray Data actor."""

    def __init__(self, arguments: dict[str, Any], ledger: Any) -> None:
        super().__init__(compress.CompressVideo(**arguments), ledger, ENCODED, "encode_failed")


class AnswerQuestions(_OnBlocks):
    """`stages.answer.AnswerQuestions` as a Ray Data actor."""

    def __init__(self, arguments: dict[str, Any], ledger: Any) -> None:
        super().__init__(answer.AnswerQuestions(**arguments), ledger, RESULT, "answer_failed")


def decode_video(block: pa.Table, **arguments: Any) -> pa.Table:
    """`stages.decode.decode_video` as a Ray Data task."""
    rows = (decode.decode_video(row, **arguments) for row in block.to_pylist())
    return to_table(rows, DECODED)


def _blocks(clips: pa.Table, largest: int = _MAX_CLIPS_PER_BLOCK) -> Dataset:
    """Small blocks, so that clips start to flow at once and every worker gets some."""
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    size = min(largest, max(1, math.ceil(clips.num_rows / (4 * workers))))
    # Not `from_arrow`: it starts a task per block, only to look at what is known here.
    return ray.data.from_blocks(
        [clips.slice(start, size) for start in range(0, clips.num_rows, size)]
    )


def _actors(dataset: Dataset, stage: type, pool: ActorPool, arguments: dict[str, Any]) -> Dataset:
    """Append a stage that runs in a fixed pool of actors."""
    return dataset.map_batches(
        stage,
        batch_size=_MAX_CLIPS_PER_BLOCK,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=pool.num_actors),
        fn_constructor_kwargs=arguments,
        num_cpus=pool.num_cpus,
        num_gpus=pool.num_gpus,
        # One byte, so that Ray never takes decode tasks and these actors for the same kind of
        # worker and fuses them.
        memory=1,
    )
