"""Estimates before a job starts: clips, tokens and bytes of a plan, rates of earlier runs, time.

Imports `jobs.results`, `pipeline` and `tango_core`. Nothing here starts a job or loads weights;
`jobs/run/dry_run.py` adds the memory of actors and prints the estimate.
"""
