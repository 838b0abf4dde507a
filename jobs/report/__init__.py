"""What people read of a run: the HTML page, plots, notes, and comparisons of several runs.

What lives here: `page.py` and `sections.py` (the page and its tables as data), `plots.py` and
`theme.py`, `notes.py` and `controls.py` (sentences below a table), `compare.py` (`tango report`),
`paired.py` (runs read and compared, for that and for `tango runs compare`),
`shards.py` (runs that are one job), `common.py` (runs that were asked different questions),
`formatting.py` (how numbers and tables are written), `escaping.py` (names that each format takes
literally). Tables in files are in `tables/`.

May import: `jobs.results` and the rooms below it; never `jobs.run`, `jobs.tracking` or `jobs.cli`.

A new plot goes into `plots.py`, with its caption in `page.py`. A new section of the page: its data
in `sections.py` and its place in `templates/report.html.j2`.
"""
