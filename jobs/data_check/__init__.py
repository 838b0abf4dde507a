"""`tango data check`: every row and every file of a benchmark, before a job needs them.

`check.py` is the command and prints or writes what was found, `media.py` opens one file in a child
process. Imports `pipeline`, `tango_core`, `jobs.report` and what these import. What a benchmark
knows about its own rows it reports itself (`entries`, `defects`).
"""
