"""Tables as text, Markdown, CSV and LaTeX.

What lives here: `cells` (tables per cell, method and stage, methods beside the best control, and
the names of cells in all tables), `breakdowns` (scores by group, all metrics, confusion
of options), `paper`.

May import: `jobs.report.formatting` and `jobs.results`, not the page or the plots.

A new table: a function here that turns `CellSummary` objects into text, and a line in
`report_runs` of `jobs.report.compare`.
"""
