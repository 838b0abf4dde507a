"""`tango analyze ...`: pages about encoders and methods; `tango_core.analysis` computes.

`clips.py` loads the clips of a recipe (from the feature store if they are stored) and plans its
methods, `page.py` and `templates/` write figures, tables and one page, `figures.py` has the common
parts of figures. The analyses: `encoders.py` (attention, sinks, activations, clusters) and
`methods.py` (coverage, evidence).

Imports `jobs.report` for themes and formats, `jobs.results`, `jobs.run` and what these import. A
new analysis is a function here, a module in `tango_core.analysis`, and a command in
`jobs/cli/analyze.py`.
"""
