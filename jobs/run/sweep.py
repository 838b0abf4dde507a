"""`tango sweep`: several methods and benchmarks from one decode and one encode per clip."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from jobs.config.recipe import Job, RecipeError
from jobs.run.locations import Locations
from jobs.run.run_job import measure
from pipeline.executors.early import EarlyRay


def sweep(
    jobs: Sequence[Job], locations: Locations, console: Console, early: EarlyRay | None = None
) -> int:
    """Measure any number of methods in one streaming execution; returns the exit code.

    Args:
        jobs: What the recipe stands for; several make one run each, one after the other.
        locations: Where the jobs read and write.
        console: Where the tables go.
        early: A Ray that is on its way, for jobs that run on it.

    Raises:
        RecipeError: If several jobs are to continue one run.
    """
    if len(jobs) > 1 and locations.resume:
        raise RecipeError(
            f"--resume {locations.resume}: this recipe makes {len(jobs)} runs; "
            "resume each with the job.yaml in its directory"
        )
    return max(measure(job, "sweep", locations, console, early) for job in jobs)
