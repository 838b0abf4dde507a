"""Tables as text, Markdown, CSV and LaTeX.

What lives here: `cells` (per cell, per method, per stage, and how cells are named in all tables),
`breakdowns` (scores and differences by group, all metrics), `confusion`, `paper`.

May import: `jobs.report.formatting` and `jobs.results`, not the page or the plots.

A new table: a function here that turns `CellSummary` objects into text, and a line in
`write_tables` of `jobs.report.compare`.
"""
