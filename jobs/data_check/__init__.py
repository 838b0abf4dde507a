"""`tango data check`: check every row and every file of a benchmark before running a job.

`check.py` is the command and prints or writes the findings, `media.py` opens one file in a child
process. Imports `pipeline`, `tango_core`, `jobs.report` and what these import. Benchmarks
report defects of their own rows (`entries`, `defects`).
"""
