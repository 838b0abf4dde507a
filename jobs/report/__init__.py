"""What people read of a run: the HTML page, plots, notes, and comparisons of several runs.

Imports `results`. Tables in every format are in `tables/`; a new plot goes into `plots.py`.
"""
