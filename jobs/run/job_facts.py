"""Collect the facts that a finished run records in `facts.json`."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from jobs.config.recipe import Job
from jobs.results.facts import CellFacts, JobFacts, ShardSize, WorkCounts
from jobs.run.build import BuiltJob
from jobs.run.placement import device_name
from pipeline.methods import PlannedMethod
from pipeline.plan import Plan
from tango_core.benchmarks import Benchmark
from tango_core.ops.precision import float32_products

Kind = Literal["evaluate", "sweep", "precompute"]


def facts_of_job(
    job: Job,
    built: BuiltJob,
    plan: Plan,
    kind: Kind,
    run_id: str,
    cache_root: str,
    *,
    started_at: datetime,
    wall_s: float | None,
    shards: tuple[ShardSize, ...],
    num_answers: int | None,
    work: WorkCounts,
) -> JobFacts:
    """Collect the facts of a job.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        plan: Plan of the job.
        kind: The command.
        run_id: Name of the run directory.
        cache_root: Directory or URL of the token caches.
        started_at: Start time of this driver.
        wall_s: Seconds since then; `None` for a continued run.
        shards: Sizes of all shards if the job is one of several.
        num_answers: Number of rows in `answers/`; `None` if the job answers no questions.
        work: Counts of decoded, encoded, computed and answered items.
    """
    model = built.model
    rules = [one.protocol.subtitles for one in built.benchmarks.values()]
    notes = [model.note, *(rule.note for rule in rules if rule is not None)]
    return JobFacts(
        run_id=run_id,
        kind=kind,
        model=model.name,
        cells=tuple(
            _facts_of_cell(benchmark, planned, model.llm.num_layers)
            for benchmark in built.benchmarks.values()
            for planned in plan.methods
        ),
        mode=job.mode,
        llm=model.llm,
        wall_s=wall_s,
        started_at=started_at.isoformat(timespec="seconds"),
        note="; ".join(note for note in notes if note),
        git_commit=git_commit(),
        caches=tuple(plan.caches),
        cache_root=cache_root,
        device=device_name(model.device),
        num_frames=model.frames.num_frames,
        checkpoint=model.digest,
        dtype=model.dtype,
        versions=versions(),
        float32_products=float32_products(),
        skipped=built.skipped,
        shards=shards,
        input_size=model.options.input_size(),
        num_answers=num_answers,
        features=plan.features.cache.name if plan.features else "",
        work=work,
    )


def _facts_of_cell(benchmark: Benchmark, planned: PlannedMethod, num_layers: int) -> CellFacts:
    """Collect the facts of one method on one benchmark."""
    pruner = planned.method.pruner
    options = {k: v for k, v in planned.method.options.items() if k != "retention"}
    return CellFacts(
        name=planned.name,
        benchmark=benchmark.name,
        method=planned.method.name,
        retention=planned.retention,
        options=options,
        layer_shares=pruner.layer_shares(num_layers) if pruner else None,
        protocol=benchmark.protocol.name,
        cache=planned.cache,
    )


LIBRARIES = (
    "tango-video",
    "ray",
    "torch",
    "transformers",
    "av",
    "decord",
    "pyarrow",
    "pandas",
    "mlflow",
    "numpy",
)


def git_commit() -> str:
    """Commit of the code, or "" outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
