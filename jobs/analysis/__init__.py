"""`tango analyze ...`: one module per analysis; `tango_core.analysis` does the arithmetic.

What lives here: `clips.py` (the clips of a recipe, from the feature store where they are there),
`cells.py` (the plans of its methods), `answered.py` (answers of a run), `page.py` and `templates/`
(figures, tables, one page), `command.py` (how a command ends), `figures/` (what is drawn), and the
analyses: `attention.py`, `sinks.py`, `activations.py`, `clusters.py`, `coverage.py` with
`correlations.py`, `evidence.py` with `explained.py`.

May import: `jobs.report` for themes and formats, `jobs.run` and the rooms below. A new analysis is
a module here, a module there, and a command in `jobs/cli/analyze.py`.
"""
