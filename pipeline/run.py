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
from pipeline.stages.profile import ProfileAnswers, ProfileCompression


def run(plan: Plan, settings: Settings) -> Iterator[Row]:
    """Yield one `rows.RESULT` per clip of the plan, in the order in which clips are finished.

    Raises:
        PoolError: If a pool does not fit the cluster.
        ClusterError: If the cluster cannot be reached.
    """
    if plan.clips.num_rows == 0:
        return
    for cache in plan.caches.values():
        cache.prepare()
    yield from _on_ray(plan, settings) if settings.executor == "ray" else _in_a_loop(plan, settings)


def _on_ray(plan: Plan, settings: Settings) -> Iterator[Row]:
    """The distributed executor."""
    from pipeline.executors import cluster, ray_data

    stages = ["decode", "compress", *(["answer"] if plan.answer else [])]
    with cluster.connected(settings.address) as nodes:
        preflight(settings.pools, nodes, stages)
        yield from ray_data.stream(plan, settings)


def _in_a_loop(plan: Plan, settings: Settings) -> Iterator[Row]:
    """One process, one clip at a time; a profile starts with a clip that is done twice."""
    stages = _Stages(plan, settings)
    warm = not settings.profile
    for batch in plan.clips.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            done = stages(row)
            if not warm and _succeeded(done):
                done, warm = stages(row), True
            yield done


class _Stages:
    """All stages for one clip; models are loaded when the first clip needs them."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan = plan
        self.settings = settings
        self._compress: CompressVideo | None = None
        self._answer: AnswerQuestions | None = None

    def __call__(self, row: Row) -> Row:
        """Run one clip to its `rows.RESULT`."""
        plan, settings = self.plan, self.settings
        if row["missing"]:
            row = decode_video(row, **decode_arguments(plan, settings))
            if self._compress is None:
                compress = ProfileCompression if settings.profile else CompressVideo
                self._compress = compress(**compress_arguments(plan, settings))
            row = self._compress(row)
        row = {"decode_ms": None, "encode_ms": None, "compress_ms": None, **row}
        if not plan.answer:
            return result(row, [])
        if self._answer is None:
            answer = ProfileAnswers if settings.profile else AnswerQuestions
            self._answer = answer(**answer_arguments(plan, settings))
        return self._answer(row)


def _succeeded(done: Row) -> bool:
    """Whether a clip went through every stage, so that all of them are warm now."""
    failures = ("decode_failed", "encode_failed", "answer_failed")
    return done["status"] == "ok" and not any(a["status"] in failures for a in done["answers"])
