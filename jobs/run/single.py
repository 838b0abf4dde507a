"""What `tango evaluate` makes of a recipe; imported before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

from jobs.config.recipe import Job, RecipeError
from jobs.results.cell_summary import BASELINE


def single(job: Job) -> Job:
    """The job that `tango evaluate` makes of a recipe.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    methods = [options for _, options in job.all_methods]
    if job.mode == "profile":
        methods = [options for options in methods if options["name"] != BASELINE] or methods[:1]
    for what, number in (("methods", len(methods)), ("benchmarks", len(job.all_benchmarks))):
        if number != 1:
            raise RecipeError(
                f"`tango evaluate` measures one method on one benchmark, and this recipe names "
                f"{number} {what}; run it with `tango sweep`"
            )
    if job.mode == "profile" and methods[0]["name"] != BASELINE:
        job = replace(job, method=None, methods=({"name": BASELINE}, methods[0]))
    return job
