"""Reports of runs: the HTML page, plots, notes, and comparisons of several runs.

What lives here: `page.py` (the page, its summary and its tables), `charts.py` (the plot of scores
over cost, as SVG), `theme.py` (settings of matplotlib for figures of analyses), `compare.py`
(merges shards of a job, compares and reports runs, for `tango report` and `tango runs compare`),
`formatting.py` (formats of numbers, names and tables). Tables in files are in `tables/`.

May import: `jobs.results` and what that may import; never `jobs.run`, `jobs.tracking`, `jobs.cli`.

A new plot is a function in `charts.py`, called in `page.py`. A new section of the page: its data
in `page.py` and its place in `templates/report.html.j2`.
"""
