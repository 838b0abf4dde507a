"""The runs that are there: `tango runs ls | show | rm | compare | replicates`.

What lives here: `found.py` (which directories are runs, the one that a user means, and whether it
is running, stopped or finished), `show.py` (all runs as a table, and one run), `compare.py` (two or
more in one table, several trainings of a model; `jobs.report` does the work) and `removal.py`
(removes a run, never while a driver works on it).

May import: `jobs.report`, `jobs.results`, `jobs.run`, `jobs.config`. Nothing here opens a
benchmark or a model.
"""
