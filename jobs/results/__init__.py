"""From answers to numbers: facts of a run, summaries, scores, comparisons, published figures.

Imports `config` and `tango_core`; knows neither pages nor MLflow. A new number goes into
`measurements.py` or `scores.py` and into the summary.
"""
