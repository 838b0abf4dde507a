"""`tango evaluate`: one model, one benchmark, one method."""

from __future__ import annotations

from rich.console import Console

from jobs.config.recipe import Job
from jobs.run.build import build
from jobs.run.devices import Cluster
from jobs.run.display import Display
from jobs.run.locations import Locations
from jobs.run.run_job import measure
from jobs.run.single import single


def evaluate(
    job: Job,
    locations: Locations,
    console: Console,
    display: Display | None = None,
) -> int:
    """Measure one method on one benchmark; returns the exit code.

    In profile mode all tokens are measured beside it, on the same clips: a speed-up needs both.

    Raises:
        RecipeError: If the recipe names several methods or benchmarks.
    """
    job = single(job)
    built = build(job, Cluster(locations.address))
    return measure(job, built, "evaluate", locations, display or Display.on(console))[0]
