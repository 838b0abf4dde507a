"""From answers to numbers: facts of a run, summaries, scores, comparisons, published figures.

What lives here: `facts.py` (what a run says about itself); `plain.py`, `quantities.py`,
`cell_summary.py` and `run_summary.py` (the types of a summary and their JSON); `summary.py`,
`measurements.py` and `scores.py` (fill them); `baselines.py`; `published.py`.

May import: `tango_core` and the rooms below (`config`). It knows neither pages nor MLflow.

A new number: compute it in `measurements.py` or `scores.py`, add a field to `CellSummary` with its
JSON key, and fill it in `summary.py`.
"""
