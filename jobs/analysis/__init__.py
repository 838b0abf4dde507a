"""`tango analyze ...`: one module per analysis; `tango_core.analysis` does the arithmetic.

`clips.py` has the clips of a recipe (from the feature store where they are there) and the plans of
its methods, `page.py` and `templates/` write figures, tables and one page, `figures.py` holds what
several figures share. The analyses: `attention.py` (with `sinks`), `activations.py`, `clusters.py`,
`coverage.py`, `evidence.py`.

Imports `jobs.report` for themes and formats, `jobs.results`, `jobs.run` and what these import. A
new analysis is a module here, one in `tango_core.analysis`, and a command in `jobs/cli/analyze.py`.
"""
