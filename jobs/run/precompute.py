"""`tango precompute`: fill the token caches and answer nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

from rich.console import Console

from jobs.config.recipe import Job
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import build
from jobs.run.directories import new_run_dir
from jobs.run.driver import execute
from jobs.run.locations import Locations
from jobs.run.run_job import counted, exit_code
from pipeline.executors.early import EarlyRay
from pipeline.run import run


def precompute(
    job: Job, locations: Locations, console: Console, early: EarlyRay | None = None
) -> int:
    """Compress every clip of the recipe with every method of the recipe; returns the exit code.

    A clip that is in the cache already is not touched, so the same command continues after an
    interruption.
    """
    job = replace(job, mode="throughput")  # a profile would compute again what is in the cache
    built = build(job)
    run_dir = new_run_dir(job, locations.output, open_storage=locations.open_storage)
    run_plan = partial(run, early=early)
    job_result = execute(job, built, "precompute", locations, run_dir, console, run_plan=run_plan)
    counts = {**asdict(job_result), "facts": job_result.facts.to_json()}
    text = json.dumps(counts, indent=2, default=str) + "\n"
    locations.open_storage(run_dir).write(SUMMARY_FILE, text.encode())
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"clips:   {counted(job_result)}")
    for name in job_result.facts.caches:
        say(f"cache:   {locations.cache_root}/{name}")
    return exit_code(job, job_result, run_dir)
