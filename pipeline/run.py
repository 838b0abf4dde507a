"""Run a plan: on Ray, or in a plain loop with the same stages and equal results."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.plan import Plan
from pipeline.pools import preflight
from pipeline.rows import Row
from pipeline.settings import Settings, answer_arguments, compress_arguments, decode_arguments
from pipeline.stages.answer import AnswerQuestions, result
from pipeline.stages.compress import CompressVideo
from pipeline.stages.decode import decode_video


def run(plan: Plan, settings: Settings) -> Iterator[Row]:
    """Yield one `rows.RESULT` per clip of the plan, in the order in which clips are finished.

    Raises:
        PoolError: If a pool does not fit the cluster.
        ClusterError: If the cluster cannot be reached.
    """
    if plan.clips.num_rows == 0:
        return
    for name in plan.compressors:
        plan.cache(name).prepare()
    yield from _on_ray(plan, settings) if settings.executor == "ray" else _in_a_loop(plan, settings)


def _on_ray(plan: Plan, settings: Settings) -> Iterator[Row]:
    """The distributed executor."""
    from pipeline import cluster, graph

    stages = ["decode", "compress", *(["answer"] if plan.cells else [])]
    with cluster.connected(settings.address) as nodes:
        preflight(settings.pools, nodes, stages)
        yield from graph.stream(plan, settings)


def _in_a_loop(plan: Plan, settings: Settings) -> Iterator[Row]:
    """One process, one clip at a time; models are loaded when the first clip needs them."""
    compress: CompressVideo | None = None
    answer: AnswerQuestions | None = None
    for batch in plan.clips.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            if row["missing"]:
                row = decode_video(row, **decode_arguments(plan, settings))
                compress = compress or CompressVideo(**compress_arguments(plan, settings))
                row = compress(row)
            row = {"decode_ms": None, "encode_ms": None, "compress_ms": None, **row}
            if not plan.cells:
                yield result(row, [])
                continue
            answer = answer or AnswerQuestions(**answer_arguments(plan, settings))
            yield answer(row)
