"""Run the jobs of a recipe: `evaluate`, `sweep`, `precompute` and `--dry-run`.

`commands.py` runs the jobs of a recipe and shows their results. `build.py` opens what a recipe
names, `placement.py` chooses executor, device and pools, `planning.py` makes a plan, `driver.py`
runs it and writes the files of a run, `outcome.py` counts results and failures, `job_facts.py` is
what a run records about itself, `dry_run.py` estimates a job instead. `progress.py` and
`json_events.py` show a job, `interrupt_message.py` says how to continue one. `run_dirs.py` finds
and creates run directories, `run_identity.py` refuses to continue a run with other code or weights.
Imports `jobs.config`, `jobs.estimate`, `jobs.results`, `jobs.report`, `jobs.tracking` and
`pipeline`.
"""
