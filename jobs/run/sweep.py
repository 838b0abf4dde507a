"""`tango sweep`: several methods and benchmarks from one decode and one encode per clip."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console

from jobs import exit_codes
from jobs.config.recipe import Job, RecipeError
from jobs.run.build import build
from jobs.run.continuing import finished_of_round
from jobs.run.devices import Cluster
from jobs.run.directories import make_run_dir
from jobs.run.display import Display
from jobs.run.locations import Locations
from jobs.run.run_job import measure
from pipeline.storage import Storage
from pipeline.storage.copies import local_copy
from pipeline.storage.urls import Place


def sweep(
    jobs: Sequence[Job],
    locations: Locations,
    console: Console,
    display: Display | None = None,
) -> int:
    """Measure any number of methods in one streaming execution; returns the exit code.

    Args:
        jobs: What the recipe stands for; several make one run each, one after the other, and then
            one comparison of all.
        locations: Where the jobs read and write.
        console: Where the tables go.
        display: How progress is shown beside them.

    Raises:
        RecipeError: If several jobs are to continue one run, or one names what is not there.
    """
    if len(jobs) > 1 and locations.resume:
        raise RecipeError(
            f"--resume {locations.resume}: this recipe makes {len(jobs)} runs; "
            "resume each with the job.yaml in its directory"
        )
    shown, several = display or Display.on(console), len(jobs) > 1
    cluster = Cluster(locations.address)
    built = [build(job, cluster) for job in jobs]  # what the last one lacks ends all, at once
    finished = (
        finished_of_round(jobs, locations.output, open_storage=locations.open_storage)
        if several and locations.continues
        else {}
    )
    run_dirs, code = dict(finished), exit_codes.OK
    for number in (one for one in range(len(jobs)) if one not in finished):
        own_code, run_dirs[number] = measure(
            jobs[number],
            built[number],
            "sweep",
            locations,
            shown,
            one_of_several=several,
        )
        code = max(code, own_code)
    if several:
        compare(jobs, [run_dirs[number] for number in range(len(jobs))], locations, shown)
    return code


def compare(
    jobs: Sequence[Job], run_dirs: Sequence[Place], locations: Locations, display: Display
) -> None:
    """Set the runs of one recipe side by side, in a directory beside theirs, and show the table.

    Args:
        jobs: What was run.
        run_dirs: The run of each.
        locations: Where the jobs read and write.
        display: Where the table goes.
    """
    from jobs.report.compare import report_runs  # tables and plots are needed at the end only

    first = jobs[0]
    benchmarks = "+".join(section.name for section in first.all_benchmarks)
    what = [benchmarks, first.model.name, "comparison"]
    folder = make_run_dir(what, locations.output, open_storage=locations.open_storage)
    with ExitStack() as copies:
        runs = [copies.enter_context(local_copy(run_dir)) for run_dir in run_dirs]
        into = copies.enter_context(local_copy(folder, lambda name: False))
        page = folder / report_runs(runs, into).name
        table = Storage.at(into).read("paper_table.md").decode()
    display.say(f"\n{len(jobs)} runs side by side\n\n{table}")
    display.say(f"report:  {page}")
