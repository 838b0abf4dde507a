"""`tango sweep`: several methods and benchmarks from one decode and one encode per clip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs.config.recipe import Job, RecipeError
from jobs.report.compare import report_runs
from jobs.run.directories import make_run_dir
from jobs.run.locations import Locations
from jobs.run.run_job import measure


def sweep(jobs: Sequence[Job], locations: Locations, console: Console) -> int:
    """Measure any number of methods in one streaming execution; returns the exit code.

    Args:
        jobs: What the recipe stands for; several make one run each, one after the other, and then
            one comparison of all.
        locations: Where the jobs read and write.
        console: Where the tables go.

    Raises:
        RecipeError: If several jobs are to continue one run.
    """
    if len(jobs) > 1 and locations.resume:
        raise RecipeError(
            f"--resume {locations.resume}: this recipe makes {len(jobs)} runs; "
            "resume each with the job.yaml in its directory"
        )
    codes, run_dirs = zip(*(measure(job, "sweep", locations, console) for job in jobs), strict=True)
    if len(jobs) > 1:
        _compare(jobs, run_dirs, locations, console)
    return max(codes)


def _compare(
    jobs: Sequence[Job], run_dirs: Sequence[Path], locations: Locations, console: Console
) -> None:
    """Set the runs of one recipe side by side, in a directory beside theirs."""
    first = jobs[0]
    benchmarks = "+".join(section.name for section in first.all_benchmarks)
    what = [benchmarks, first.model.name, "comparison"]
    folder = make_run_dir(what, locations.output, open_storage=locations.open_storage)
    page = report_runs(run_dirs, folder)
    table = (folder / "paper_table.md").read_text(encoding="utf-8")
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"\n{len(jobs)} runs side by side\n\n{table}")
    say(f"report:  {page}")
