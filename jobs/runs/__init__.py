"""Existing runs: `tango runs ls | show | rm | compare`.

`found.py` finds runs and the state of one, and removes one, never while a driver works on it.
`show.py` prints them (for several in one table `jobs.report` does the work), `hub.py` exports one
for the Hugging Face hub.

Imports `jobs.report`, `jobs.results`, `jobs.run`, `jobs.config`. Nothing here opens a benchmark
or a model.
"""
