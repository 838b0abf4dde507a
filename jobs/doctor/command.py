"""`tango doctor`: can this machine run, before a long job finds out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs.config.recipe import Job, RecipeError, load_jobs
from jobs.doctor import decoding, machine, services, storage
from jobs.doctor import recipe as recipes
from jobs.doctor.checks import Check, Remark, examine, ok, print_remark, problem
from jobs.run.locations import Places
from jobs.tracking.server import default_tracking_uri


def doctor(recipe: Path | None, changes: Sequence[str], where: Places, console: Console) -> int:
    """Look at everything that a job needs and print one line about each.

    Args:
        recipe: Also look at what this recipe names; `None` for the machine alone.
        changes: `--set` overrides of the recipe.
        where: Where the job would read and write.
        console: Where the lines go.

    Returns:
        Exit code: 1 if there is any problem.

    Raises:
        RecipeError: If there are changes but no recipe.
    """
    if changes and recipe is None:
        raise RecipeError(f"--set {changes[0]} changes a recipe; name one: tango doctor RECIPE")
    marks: Counter[str] = Counter()
    job: Job | None = None
    if recipe is not None:
        job, remark = _read(recipe, changes)
        print_remark("recipe", remark, console)
        marks[remark.mark] += 1
    for subject, remark in examine(checks_for(job, where)):
        print_remark(subject, remark, console)
        marks[remark.mark] += 1
    counts = [f"{marks[mark]} {mark}{'s' * (marks[mark] != 1)}" for mark in ("problem", "note")]
    console.print(", ".join(counts), highlight=False)
    return 1 if marks["problem"] else 0


def checks_for(job: Job | None, where: Places) -> list[Check]:
    """All checks, those of the machine before those of the recipe."""
    chosen = job.decode.decoder if job else "auto"
    uri = where.tracking_uri or default_tracking_uri(where.output)
    cache = "--cache" if where.cache else "--output or --cache"
    found = [
        Check("python", machine.python_version),
        Check("packages", machine.packages),
        # The first import of torch may read hundreds of megabytes.
        Check("accelerators", machine.accelerators, limit_s=60),
        Check("CPUs", machine.processors),
        Check("memory", machine.memory),
        Check("shared memory", machine.shared_memory),
        Check("output", storage.place, (str(where.output), "--output")),
        Check("cache", storage.place, (where.cache_root, cache)),
        Check("temporary", storage.temporary),
        Check("MLflow", services.tracking, (uri,)),
        *(
            Check(name, decoding.decoder, (name, chosen), limit_s=15)
            for name in ("decord", "pyav", "torchcodec")
        ),
        Check("embedded model", decoding.embedded_model, limit_s=60),
    ]
    if job is not None:
        found += [
            Check("model", recipes.model, (job,), limit_s=60),
            Check("methods", recipes.methods, (job, where.cache_root), limit_s=60),
            *(
                Check("benchmark", recipes.benchmark, (section,), limit_s=60)
                for section in job.all_benchmarks
            ),
        ]
    return [*found, Check("Ray", services.workers, (job, where.address), limit_s=60)]


def _read(recipe: Path, changes: Sequence[str]) -> tuple[Job | None, Remark]:
    """The recipe, or why it is none."""
    try:
        job = load_jobs(recipe, changes)[0]
        benchmarks = ", ".join(section.name for section in job.all_benchmarks)
        text = f"{recipe}: {len(job.all_methods)} method(s) with {job.model.name} on {benchmarks}"
        return job, ok(f"{text}, {job.mode} mode")
    except (ValueError, OSError) as error:
        return None, problem(str(error))
