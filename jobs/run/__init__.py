"""From a recipe to a finished run: `evaluate`, `sweep`, `precompute` and what they share.

`build.py` opens what a recipe names, `planning.py` makes a plan of it, `driver.py` runs that and
leaves the files of a run, `outcome.py` counts what it did and lists what failed, `job_facts.py` is
what a run records about itself, `run_job.py` adds summary and report. Who is told of a job while it
runs is in `observers.py`, and how it is shown in `display.py`, `progress.py` and `json_events.py`.
How a run goes on after a stop is decided in `directories.py`, `same_tokens.py` and `driver.py`.
Imports `jobs.config`, `jobs.estimate`, `jobs.results`, `jobs.report`, `jobs.tracking` and
`pipeline`; a new command that runs a plan is a module beside `sweep.py`.
"""
