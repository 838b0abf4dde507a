"""Tables as text, Markdown, CSV and LaTeX: one module per kind of table.

What lives here: `cells` (one row per cell), `profile`, `grid`, `breakdowns`, `differences`,
`confusion`, `paper`; `labels.py` names the cells in all of them; `files.py`
writes them.

May import: `jobs.report.formatting` and `jobs.results`, not the page or the plots.

A new table: a module here that turns `CellSummary` objects into text, and a line in `files.py`.
"""
