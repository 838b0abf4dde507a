"""What people read of a run: the HTML page, plots, notes, and comparisons of several runs.

What lives here: `page.py` and `sections.py` (the page and its tables as data), `plots.py` (which
figures there are) and `theme.py` (their colours), `score_plot.py`, `pareto_plot.py`, `bar_plots.py`
and `forest_plot.py` (scores over retention and over their cost, time and tokens of every cell,
differences by group), `gallery.py` (some clips) and `viewer_links.py` (into an exported viewer),
`notes.py` and `controls.py` (sentences below a table), `compare.py` (`tango report`), `paired.py`
(runs read and compared, for that and for `tango runs compare`), `replicates.py` with
`replicates_plot.py` (one recipe with several trainings of a model), `shards.py` (runs that are one
job), `common.py` (runs that were asked different questions), `formatting.py` (how numbers and
tables are written), `escaping.py` (names that each format takes literally). Tables in files are in
`tables/`.

May import: `jobs.results` and the rooms below it; never `jobs.run`, `jobs.tracking` or `jobs.cli`.

A new plot is a module beside `score_plot.py`; its file and caption go into `plots.py`. A new
section of the page: its data in `sections.py` and its place in `templates/report.html.j2`.
"""
