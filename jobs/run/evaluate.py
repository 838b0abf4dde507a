"""`tango evaluate`: one model, one benchmark, one method."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from jobs.config.recipe import Job, RecipeError
from jobs.results.cell_summary import BASELINE
from jobs.run.build import build
from jobs.run.devices import Cluster
from jobs.run.display import Display
from jobs.run.locations import Locations
from jobs.run.run_job import measure
from pipeline.executors.early import EarlyRay


def evaluate(
    job: Job,
    locations: Locations,
    console: Console,
    early: EarlyRay | None = None,
    display: Display | None = None,
) -> int:
    """Measure one method on one benchmark; returns the exit code.

    In profile mode all tokens are measured beside it, on the same clips: a speed-up needs both.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    job = single(job)
    built = build(job, Cluster(locations.address, early))
    return measure(job, built, "evaluate", locations, display or Display.on(console), early)[0]


def single(job: Job) -> Job:
    """The job that `tango evaluate` makes of a recipe.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    methods = [options for _, options in job.all_methods]
    if job.mode == "profile":
        methods = [options for options in methods if options["name"] != BASELINE] or methods[:1]
    if len(methods) != 1 or len(job.all_benchmarks) != 1:
        raise RecipeError(
            "this recipe names several methods or benchmarks; run it with `tango sweep`"
        )
    if job.mode == "profile" and methods[0]["name"] != BASELINE:
        job = replace(job, method=None, methods=({"name": BASELINE}, methods[0]))
    return job
