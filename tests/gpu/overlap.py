"""Clips per second of whole jobs: `make bench-gpu-overlap`, or `python -m tests.gpu.overlap`.

The same job in one process, which decodes the next clip beside everything else, and on Ray,
where clips are decoded on the CPUs beside both halves, which share the GPU. Needs all packages.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from jobs.config.recipe import parse_job
from jobs.run.build import build
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.run_dirs import new_run_dir
from pipeline.plan import Plan
from pipeline.rows import Result
from tests.gpu.command import Rows, Run, do_parts, options
from tests.gpu.halves import geometry
from tests.gpu.random_weights import GEOMETRIES

# Its tower is that of the 7B model; its weights are drawn in seconds.
GEOMETRY = "llava-onevision-0.5b"


class FinishTimes:
    """Notes when each clip of a job is finished."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def started(self, plan: Plan, finished: int) -> None:
        """See `Observer`."""

    def result(self, row: Result) -> None:
        """See `Observer`."""
        self.seconds.append(time.perf_counter())

    def stopped(self) -> None:
        """See `Observer`."""

    def first_s(self, whole: float) -> float:
        """Seconds before the first clip was finished: start of models and processes included."""
        return whole - (self.seconds[-1] - self.seconds[0])


def bench_overlap(run: Run) -> Rows:
    """Both executors, with a new cache each."""
    rows = []
    with (
        geometry(GEOMETRY, shrink=28 if run.small else 1, drawn=True) as path,
        tempfile.TemporaryDirectory(prefix="tango-overlap-") as folder,
    ):
        for executor in ("local", "ray"):
            recipe = _recipe(run, executor, path, Path(folder) / "shapes")
            rows.append(_measured(recipe, executor, Path(folder) / executor))
    return [{**row, "ratio": rows[0]["seconds"] / row["seconds"]} for row in rows]


def _recipe(run: Run, executor: str, path: Path, clips: Path) -> dict[str, Any]:
    """A job whose halves share one GPU."""
    share = 0.5 if run.device.type == "cuda" else 0
    half = {"num_actors": 1, "num_gpus": share}
    return {
        "benchmark": {"name": "shapes", "root": str(clips)},
        "model": {
            "name": GEOMETRIES[GEOMETRY].model,
            "path": str(path),
            "device": run.device.type,
            "dtype": "bfloat16",
            "num_frames": 4 if run.small else 32,
        },
        "methods": [{"name": "tango", "retention": 0.1, "score": "attention"}],
        "pools": {"decode": {"num_cpus": 1}, "compress": half, "answer": half},
        "limit": 4 if run.small else 128,
        "executor": executor,
    }


def _measured(recipe: dict[str, Any], executor: str, folder: Path) -> dict[str, Any]:
    """Clips per second of the whole job, which waits for models and processes first."""
    job = parse_job(recipe, "overlap")
    built = build(job)
    run_dir = new_run_dir(job, folder)
    times = FinishTimes()
    console = Console(file=io.StringIO())
    done = execute(job, built, "sweep", Locations(folder), run_dir, console, observers=[times])
    whole = done.facts.wall_s
    assert whole is not None  # nothing was resumed
    return {
        "executor": executor,
        "clips": done.num_clips,
        "failed": done.num_failed_clips,
        "CPUs": os.cpu_count(),
        "seconds": whole,
        "until the first clip": times.first_s(whole),
        "clips/s": done.num_clips / whole,
    }


def main() -> int:
    """Run both; the exit code is 1 if a clip failed."""
    run = options((__doc__ or "").split("\n")[0])
    do_parts(run, "overlap", [("Overlap", bench_overlap)])
    return int(any(row.get("failed", 1) for row in run.parts["Overlap"]))


if __name__ == "__main__":
    sys.exit(main())
