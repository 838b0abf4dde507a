"""Run the jobs of a recipe: `evaluate`, `sweep`, `precompute` and `--dry-run`.

`commands.py` runs the jobs of a recipe and shows their results. `build.py` opens what a recipe
names, chooses executor and pools, and makes a plan; `driver.py` runs it, writes the files of a run,
counts results and failures, and collects what a run records about itself; `dry_run.py` estimates a
job instead. `progress.py` shows a job, `interrupt_message.py` says how to continue one.
`run_dirs.py` finds and creates run directories and refuses to continue a run with other code or
weights. Imports `jobs.config`, `jobs.estimate`, `jobs.results`, `jobs.report`, `jobs.tracking` and
`pipeline`.
"""
