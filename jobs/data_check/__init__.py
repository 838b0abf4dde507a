"""`tango data check`: every row and every file of a benchmark, before a job needs them.

`check.py` is the command, `media.py` opens one file in a child process, `findings.py` prints and
writes what was found. May import `pipeline`, `tango_core`, `jobs.report` and the rooms below it.
What a benchmark knows about its own rows it says itself (`entries`, `defects`).
"""
