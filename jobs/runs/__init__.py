"""The runs that are there: `tango runs ls | show | rm | compare | replicates`.

What lives here: `found.py` (which directories are runs, and the one that a user means), `state.py`
(what a run is at: running, stopped, finished), `listing.py` (the table), `show.py` (one run),
`removal.py` (gone for good, never while a driver works on it), `compare.py` (two or more in one
table) and `replicates.py` (several trainings of a model), for which `jobs.report` does the work.

May import: `jobs.report`, `jobs.results`, `jobs.run`, `jobs.config`. Nothing here opens a
benchmark or a model, and nothing but `removal.py` changes a
run; `replicates.py` writes where it is told to.
"""
