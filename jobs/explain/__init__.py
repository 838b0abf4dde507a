"""Why two scores differ: `tango explain A B` attributes the difference to causes that add up.

What lives here: `sides.py` (the two results, wherever they come from: a run, a harness's file, a
published row) and `sources.py` (what a user names into sides); `answers.py` (a cell's answers as
one table); `settings.py` (what the runs say about themselves and differ in); `factors.py` (what
is known about the input of every question); `causes.py` (one cause per question);
`explanation.py` (points that add up exactly); `examples.py` (the first questions of a cause);
`published.py` (against a printed number);
`text.py` (80 columns); `command.py`.

May import: `jobs.harness`, `jobs.report`, `jobs.results` and the rooms below them. No benchmark is
opened for runs; a harness's file is read under its benchmark's annotations.

A new cause: a name in `causes.py`, and the rule that assigns questions to it.
"""
