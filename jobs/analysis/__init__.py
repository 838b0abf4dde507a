"""`tango analyze ...`: one module per analysis; the computations are in `tango_core.analysis`.

`clips.py` loads the clips of a recipe (from the feature store if they are stored) and plans its
methods, `page.py` and `templates/` write figures, tables and one page, `figures.py` has the common
parts of figures. The analyses: `attention.py` (with `sinks`), `activations.py`, `clusters.py`,
`coverage.py`, `evidence.py`.

Imports `jobs.report` for themes and formats, `jobs.results`, `jobs.run` and what these import. A
new analysis is a module here, one in `tango_core.analysis`, and a command in `jobs/cli/analyze.py`.
"""
