"""Run the jobs of a recipe: `evaluate`, `sweep`, `precompute` and `--dry-run`.

`build.py` builds the benchmarks, model description and methods of a recipe, `planning.py` makes the
plan, `driver.py` executes it and writes the run directory, `outcome.py` counts clips and failures,
`job_facts.py` collects `facts.json`, and `commands.py` adds summary, report and tracking.
`progress.py` and `json_events.py` show the progress. `run_dirs.py` and `run_identity.py` find the
run to resume and check that it computes the same. Imports `jobs.config`, `jobs.estimate`,
`jobs.results`, `jobs.report`, `jobs.tracking` and `pipeline`.
"""
