"""Tables as text, Markdown, CSV and LaTeX.

What lives here: `cells` (per cell, per method, per stage), `breakdowns` (scores and differences by
group, all metrics), `confusion`, `paper`; `labels.py` names the cells in all of them; `files.py`
writes them.

May import: `jobs.report.formatting` and `jobs.results`, not the page or the plots.

A new table: a function here that turns `CellSummary` objects into text, and a line in `files.py`.
"""
