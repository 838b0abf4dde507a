"""Reports of runs: the HTML page, plots, notes, and comparisons of several runs.

What lives here: `page.py` (the page, its summary and its tables), `plots.py` (scores over cost,
several trainings), `charts.py` (SVG), `theme.py` (matplotlib figures
of analyses), `gallery.py` (example clips), `compare.py` (reads, compares and reports runs, for
`tango report` and `tango runs compare`), `replicates.py` (one recipe with several trainings of a
model), `shards.py` (shards of one job), `formatting.py` (formats of numbers, names and tables).
Tables in files are in `tables/`.

May import: `jobs.results` and what that may import; never `jobs.run`, `jobs.tracking`, `jobs.cli`.

A new plot is a function in `plots.py`, called in `page.py`. A new section of the page: its data
in `page.py` and its place in `templates/report.html.j2`.
"""
