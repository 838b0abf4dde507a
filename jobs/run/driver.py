"""One job from recipe to results: the part that `evaluate`, `sweep` and `precompute` share.

Results are on disk before anything is summarised, drawn or uploaded, so whatever fails later fails
cheaply.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from jobs.config.recipe import Job
from jobs.results.facts import CellFacts, JobFacts
from jobs.run.build import Ingredients, make_plan, make_settings
from jobs.run.directories import claim
from jobs.run.locations import Places
from jobs.run.progress import JobProgress, is_decoded, is_failed
from jobs.run.provenance import device_name, git_commit, versions
from pipeline.answers import AnswerWriter, ClipName, write_table
from pipeline.executors.address import raise_if_unreachable
from pipeline.plan import NOTHING_DONE, Cell, Plan
from pipeline.rows import Row, to_table
from pipeline.run import run
from tango_core.benchmarks import Benchmark

logger = logging.getLogger(__name__)

Kind = Literal["evaluate", "sweep", "precompute"]

FAILURE = pa.schema(
    [
        (name, pa.string())
        for name in ("benchmark", "video_id", "question_id", "cell", "path", "status", "error")
    ]
)


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        facts: What the run says about itself.
        num_clips: Clips that went through the pipeline in this attempt.
        num_failed_clips: Of those, clips with any failure.
        num_decoded: Clips that were decoded.
        num_encoded: Clips that were encoded.
        num_hits: (clip, compressor) pairs found in the cache.
        num_computed: (clip, compressor) pairs computed.
    """

    facts: JobFacts
    num_clips: int = 0
    num_failed_clips: int = 0
    num_decoded: int = 0
    num_encoded: int = 0
    num_hits: int = 0
    num_computed: int = 0


def execute(
    job: Job, ingredients: Ingredients, kind: Kind, places: Places, run_dir: Path, console: Console
) -> Outcome:
    """Run a job and leave its answers, failures and facts in the run directory.

    A run directory that already holds answers is taken up where it stopped; its failed clips are
    tried again.
    """
    if job.executor == "ray":
        raise_if_unreachable(places.address)
    claim(run_dir, job)
    writer = AnswerWriter(run_dir / "answers") if kind != "precompute" else None
    done = writer.finished([name for name, _ in ingredients.methods]) if writer else NOTHING_DONE
    started_at, started = datetime.now(timezone.utc), time.monotonic()
    plan = make_plan(job, ingredients, places.cache_root, answer=kind != "precompute", done=done)
    if writer:
        finished = done.keys() - _names(plan.clips) if done else frozenset()
        writer.keep(finished)
        if done:
            logger.info("resuming: %d clips are finished", len(finished))
    _announce(plan)
    counts = {"clips": 0, "failed_clips": 0, "decoded": 0, "encoded": 0, "hits": 0, "computed": 0}
    failures: list[Row] = []
    with JobProgress(plan.clips.num_rows, console) as progress, _flushed(writer):
        for result in run(plan, make_settings(job, places.address)):
            progress.add(result)
            if writer:
                writer.add(result["answers"])
            failures += _failures(result)
            counts["clips"] += 1
            counts["failed_clips"] += is_failed(result)
            counts["decoded"] += is_decoded(result)
            counts["encoded"] += result["encode_ms"] is not None
            if result["status"] == "ok":
                counts["hits"] += len(plan.caches) - result["num_misses"]
                counts["computed"] += result["num_computed"]
            for warning in result["warnings"] or ():
                logger.warning("%s: %s", result["video_id"], warning)
    write_table(to_table(failures, FAILURE), run_dir / "failures.parquet")
    facts = JobFacts(
        run_id=run_dir.name,
        kind=kind,
        model=ingredients.model.name,
        cells=tuple(
            _facts(benchmark, cell, ingredients.model.decoder.num_layers)
            for benchmark in ingredients.benchmarks.values()
            for cell in plan.cells
        ),
        mode=job.mode,
        llm=ingredients.model.decoder,
        # The clock of a run that was taken up again says nothing about its speed.
        wall_s=None if done else time.monotonic() - started,
        started_at=started_at.isoformat(timespec="seconds"),
        note=ingredients.model.note,
        git_commit=git_commit(),
        caches=tuple(plan.caches),
        device=device_name(ingredients.model.device),
        num_frames=ingredients.model.frames.num_frames,
        versions=versions(),
        skipped=ingredients.left_out,
    )
    facts.save(run_dir)
    return Outcome(facts, **{f"num_{name}": count for name, count in counts.items()})


@contextmanager
def _flushed(writer: AnswerWriter | None) -> Iterator[None]:
    """Write what is pending, however the block ends."""
    try:
        yield
    finally:
        if writer:
            writer.flush()


def _names(clips: pa.Table) -> set[ClipName]:
    """Benchmark and video id of every clip."""
    return set(zip(*(clips[key].to_pylist() for key in ("benchmark", "video_id")), strict=True))


def _announce(plan: Plan) -> None:
    """Say what will be done, before it takes long."""
    misses = pc.sum(pc.greater(pc.list_value_length(plan.clips["missing"]), 0)).as_py() or 0
    gone = pc.sum(pc.not_equal(plan.clips["status"], "ok")).as_py() or 0
    logger.info(
        "%d clips, %d method(s), %d token cache(s): %d clips to decode and encode, %d from cache%s",
        plan.clips.num_rows,
        len(plan.cells) if plan.answer else 0,
        len(plan.caches),
        misses,
        plan.clips.num_rows - misses - gone,
        f", {gone} missing" if gone else "",
    )


def _failures(result: Row) -> list[Row]:
    """One row for a failed clip, or one for each of its failed answers."""
    about = {
        "benchmark": result["benchmark"],
        "video_id": result["video_id"],
        "path": result["path"],
    }
    if result["status"] != "ok":
        return [{**about, "status": result["status"], "error": result["error"]}]
    return [
        {**about, **{key: answer[key] for key in ("question_id", "cell", "status", "error")}}
        for answer in result["answers"]
        if answer["status"].endswith("_failed")
    ]


def _facts(benchmark: Benchmark, cell: Cell, num_layers: int) -> CellFacts:
    """What the results say about one method on one benchmark."""
    pruner = cell.method.pruner
    options = {k: v for k, v in cell.method.options.items() if k != "retention"}
    return CellFacts(
        name=cell.name,
        benchmark=benchmark.name,
        method=cell.method.name,
        retention=cell.retention,
        options=options,
        layer_shares=pruner.layer_shares(num_layers) if pruner else None,
        protocol=benchmark.protocol.name,
    )
