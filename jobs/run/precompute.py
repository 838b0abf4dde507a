"""`tango precompute`: fill the token caches and answer nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

from rich.console import Console

from jobs.config.recipe import Job
from jobs.run.build import build
from jobs.run.directories import new_run_dir
from jobs.run.driver import execute
from jobs.run.locations import Places
from jobs.run.run_job import counted, exit_code


def precompute(job: Job, places: Places, console: Console) -> int:
    """Compress every clip of the recipe with every method of the recipe; returns the exit code.

    A clip that is in the cache already is not touched, so the same command continues after an
    interruption.
    """
    job = replace(job, mode="throughput")  # a profile would measure what is in the cache anew
    ingredients = build(job)
    run_dir = new_run_dir(job, places.output)
    outcome = execute(job, ingredients, "precompute", places, run_dir, console)
    counts = {**asdict(outcome), "facts": outcome.facts.to_json()}
    (run_dir / "summary.json").write_text(json.dumps(counts, indent=2, default=str) + "\n")
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"clips:   {counted(outcome)}")
    for name in outcome.facts.caches:
        say(f"cache:   {places.cache_root}/{name}")
    return exit_code(job, outcome, run_dir)
