"""Why two scores differ: `tango explain A B` attributes the difference to causes that add up.

What lives here: `sides.py` (the two results: a run, a harness's file or a published row, and the
answers of a cell as one table); `causes.py` (settings that differ, what is known about the input of
every question, one cause per question); `explanation.py` (points that add up exactly, examples,
printed numbers); `command.py` (the command, and its text in 80 columns).

May import: `jobs.harness`, `jobs.report`, `jobs.results` and what these may import. No benchmark is
opened for runs; a harness's file is read under its benchmark's annotations.

A new cause: a name in `causes.py`, and the rule that assigns questions to it.
"""
