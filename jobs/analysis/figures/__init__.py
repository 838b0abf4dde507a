"""What the analyses draw: one module per analysis, and `maps.py`, which several need.

A figure is a function from reports of `tango_core.analysis` and a theme to a matplotlib figure.
Imports those and `jobs.report.theme`.
"""
