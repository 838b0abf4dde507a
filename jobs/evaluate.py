"""`tango evaluate`: one model, one benchmark, one method."""

from __future__ import annotations

from rich.console import Console

from jobs.config import Job, RecipeError
from jobs.driver import Places
from jobs.finish import measure


def evaluate(job: Job, places: Places, console: Console) -> int:
    """Measure one method on one benchmark; returns the exit code.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    if len(job.all_methods) != 1 or len(job.all_benchmarks) != 1:
        raise RecipeError(
            "this recipe names several methods or benchmarks; run it with `tango sweep`"
        )
    return measure(job, "evaluate", places, console)
