"""`tango doctor`: run all checks in a child process and print their results."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError, load_jobs
from jobs.doctor import checks
from jobs.doctor.checks import CheckResult, Status, ok
from jobs.extras import how_to_install
from jobs.run.locations import Locations
from jobs.tracking.runs import default_tracking_uri
from pipeline.runtime.child import Child

_STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


class Check(NamedTuple):
    """A function to run and the name of what it checks.

    Attributes:
        subject: One or two words, printed in front of the result.
        function: Function of an importable module.
        args: Its arguments, picklable.
        timeout_s: Seconds after which the check is stopped.
    """

    subject: str
    function: Callable[..., CheckResult]
    args: tuple[Any, ...] = ()
    timeout_s: float = 60.0


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
    job, number = None, Counter[str]()

    def show(subject: str, result: CheckResult) -> None:
        number[result.status] += 1
        line = Text.assemble((f"{result.status:<8}", _STYLES[result.status]), f"{subject:<15}")
        console.print(line + " ".join(result.text.split()), highlight=False, soft_wrap=True)

    if recipe is not None:
        try:
            job = load_jobs(recipe, changes)[0]
            show("recipe", ok(f"{recipe}: {len(job.all_methods)} method(s), {job.mode} mode"))
        except (ValueError, OSError) as error:  # only the machine is checked
            show("recipe", CheckResult("problem", str(error)))
    for subject, result in run_checks(checks_for(job, where)):
        show(subject, result)
    console.print(f"{number['problem']} problem(s), {number['note']} note(s)", highlight=False)
    return exit_codes.of(not number["problem"])


def checks_for(job: Job | None, where: Locations) -> list[Check]:
    """All checks, those of the machine before those of the recipe."""
    decoder = job.decode.decoder if job else "auto"
    uri = where.tracking_uri or default_tracking_uri(where.output)
    cache = "--cache" if where.cache else "--output or --cache"
    found = [
        Check("packages", checks.packages),
        Check("accelerators", checks.accelerators),
        Check("machine", checks.machine),
        Check("output", checks.writable, (str(where.output), "--output")),
        Check("cache", checks.writable, (where.cache_root, cache)),
        Check("temporary", checks.writable, (tempfile.gettempdir(), "TMPDIR")),
        Check("MLflow", checks.tracking, (uri,)),
        Check("decoder", checks.video_decoder, (decoder,)),
        Check("built-in model", checks.embedded_model),
    ]
    if job is not None:
        videos = job.decode.video_cache
        found += [
            Check("model", checks.model, (job,)),
            Check("methods", checks.methods, (job, where.cache_root)),
            *(Check("benchmark", checks.benchmark, (one, videos)) for one in job.all_benchmarks),
        ]
    return [*found, Check("Ray", checks.ray_pools, (job, where.address))]


def run_checks(wanted: Iterable[Check]) -> Generator[tuple[str, CheckResult]]:
    """Run checks one by one in a child process; yields (subject, result), and never raises.

    A check that raises, takes too long or ends its process is a problem with that as its text, and
    the next check starts in a new process.
    """
    child = Child()
    try:
        for subject, function, args, timeout_s in wanted:
            call = (_without_log, function, args)
            try:
                result = child.call(*call, timeout_s=timeout_s, about=subject, what="check")
            # Any error is what the user wants to know, and the remaining checks must still run.
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if isinstance(error, ModuleNotFoundError):
                    text = how_to_install(error) or text
                elif isinstance(error, (ValueError, OSError)):
                    text = str(error) or text
                result = CheckResult("problem", text)
            yield subject, result
    finally:
        child.close()


def _without_log(function: Callable[..., CheckResult], args: tuple[Any, ...]) -> CheckResult:
    """Run a check in the child; log messages of libraries would mix with the results."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    return function(*args)
