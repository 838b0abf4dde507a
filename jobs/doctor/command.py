"""`tango doctor`: run all checks and print their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError, load_jobs
from jobs.doctor import machine
from jobs.doctor import recipe as recipes
from jobs.doctor.checks import Check, CheckResult, ok, print_result, problem, run_checks
from jobs.run.locations import Locations
from jobs.tracking.server import default_tracking_uri


def doctor(recipe: Path | None, changes: Sequence[str], where: Locations, console: Console) -> int:
    """Check everything that a job needs and print one line per check.

    Args:
        recipe: Also check what this recipe names; `None` to check the machine alone.
        changes: `--set` overrides of the recipe.
        where: Where the job would read and write.
        console: Where the lines are printed.

    Returns:
        Exit code: 1 if there is any problem.

    Raises:
        RecipeError: If there are changes but no recipe.
    """
    if changes and recipe is None:
        raise RecipeError(f"--set {changes[0]} changes a recipe; name one: tango doctor RECIPE")
    number: Counter[str] = Counter()
    job: Job | None = None
    if recipe is not None:
        job, result = _read(recipe, changes)
        print_result("recipe", result, console)
        number[result.status] += 1
    for subject, result in run_checks(checks_for(job, where)):
        print_result(subject, result, console)
        number[result.status] += 1
    counts = [f"{number[name]} {name}{'s' * (number[name] != 1)}" for name in ("problem", "note")]
    console.print(", ".join(counts), highlight=False)
    return exit_codes.of(not number["problem"])


def checks_for(job: Job | None, where: Locations) -> list[Check]:
    """All checks, those of the machine before those of the recipe."""
    chosen = job.decode.decoder if job else "auto"
    uri = where.tracking_uri or default_tracking_uri(where.output)
    cache = "--cache" if where.cache else "--output or --cache"
    checks = [
        Check("python", machine.python_version),
        Check("packages", machine.packages),
        # The first import of torch may read hundreds of megabytes.
        Check("accelerators", machine.accelerators),
        Check("CPUs", machine.cpus),
        Check("memory", machine.memory),
        Check("output", recipes.writable, (str(where.output), "--output")),
        Check("cache", recipes.writable, (where.cache_root, cache)),
        Check("temporary", recipes.temporary),
        Check("MLflow", recipes.tracking, (uri,)),
        *(
            Check(name, machine.video_decoder, (name, chosen))
            for name in ("decord", "pyav", "torchcodec")
        ),
        Check("embedded model", machine.embedded_model),
    ]
    if job is not None:
        checks += [
            Check("model", recipes.model, (job,)),
            Check("methods", recipes.methods, (job, where.cache_root)),
            *(
                Check("benchmark", recipes.benchmark, (section, job.decode.video_cache))
                for section in job.all_benchmarks
            ),
        ]
    return [*checks, Check("Ray", recipes.ray_pools, (job, where.address))]


def _read(recipe: Path, changes: Sequence[str]) -> tuple[Job | None, CheckResult]:
    """The recipe, or `None` and the reason why it cannot be read."""
    try:
        job = load_jobs(recipe, changes)[0]
        benchmarks = ", ".join(section.name for section in job.all_benchmarks)
        text = f"{recipe}: {len(job.all_methods)} method(s) with {job.model.name} on {benchmarks}"
        return job, ok(f"{text}, {job.mode} mode")
    except (ValueError, OSError) as error:
        return None, problem(str(error))
