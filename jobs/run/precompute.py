"""`tango precompute`: fill the token caches and answer nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from rich.console import Console

from jobs.config.recipe import Job
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import build
from jobs.run.desk import desk_of, results_of, tracking_uri_of
from jobs.run.devices import Cluster
from jobs.run.directories import new_run_dir
from jobs.run.display import Display
from jobs.run.driver import execute
from jobs.run.json_events import JsonEvents
from jobs.run.last_words import works_on
from jobs.run.locations import Locations
from jobs.run.outcome import JobResult
from jobs.run.run_job import counted, exit_code, where
from jobs.tracking.live import LiveRun
from pipeline.metrics import JobBoard
from pipeline.redaction import redacted
from pipeline.run import run
from pipeline.runtime.stopping import at_stop
from pipeline.storage import Storage


def precompute(
    job: Job,
    locations: Locations,
    console: Console,
    display: Display | None = None,
) -> int:
    """Compress every clip of the recipe with every method of the recipe; returns the exit code.

    With a feature store the features of every clip are stored, too.

    A clip that is in the cache already is not touched, so the same command continues after an
    interruption.
    """
    job = replace(job, mode="throughput")  # a profile would compute again what is in the cache
    built = build(job, Cluster(locations.address))
    methods = [name for name, _ in built.methods]
    run_dir = new_run_dir(
        job, locations.output, methods=methods, open_storage=locations.open_storage
    )
    works_on(run_dir, caches_only=True)
    display, board = display or Display.on(console), JobBoard()
    events = JsonEvents(display.events, run_dir, board) if display.events else None
    uri, every_s = tracking_uri_of(locations), job.tracking.every_s
    with (
        desk_of(run_dir) as desk,
        LiveRun(desk, uri, "precompute", every_s=every_s, board=board) as live,
        at_stop(lambda signal: live.end("KILLED", signal)),
    ):
        job_result = execute(
            job,
            built,
            "precompute",
            locations,
            run_dir,
            display.progress,
            run_plan=partial(run, board=board),
            observers=[live, *([events] if events else [])],
            board=board,
        )
        text = json.dumps(_summary(job_result), indent=2, default=str) + "\n"
        with results_of(run_dir, desk) as folder:
            Storage.at(folder).write(SUMMARY_FILE, text.encode())
        display.say(f"clips:   {counted(job_result)}")
        for name in job_result.facts.caches:
            display.say(f"cache:   {redacted(locations.cache_root)}/{name}")
        if job_result.facts.features:
            display.say(f"features: {redacted(locations.cache_root)}/{job_result.facts.features}")
        tracked = live.finish()
    if tracked:
        display.say(f"MLflow:  {where(live.uri, tracked)}")
    code = exit_code(job, job_result, run_dir)
    if events:
        events.finished(code, None, tracked)
    return code


def _summary(job_result: JobResult) -> dict[str, Any]:
    """What `summary.json` holds: the counts, and what every run says of its work and its caches."""
    facts = job_result.facts
    return {
        **asdict(job_result),
        "facts": facts.to_json(),
        "run_id": facts.run_id,
        "work": asdict(facts.work) if facts.work else None,
        "cache": {"hits": job_result.num_hits, "misses": job_result.num_computed},
    }
