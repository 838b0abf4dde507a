"""From answers to numbers: facts of a run, summaries, scores, comparisons, published numbers.

What lives here: `facts.py` (what a run says about itself); `quantities.py` and `cell_summary.py`
(the types of a summary and their JSON); `summary.py` (reads answers part by part, and makes the
numbers of cells and runs from `outcomes.py`, the outcome of every question and cell with the groups
of questions, and `measurements.py`, sums, latencies, replies and failures per cell;
`answer_columns.py` is one part of them); `comparisons.py` (which cells are comparable; methods
beside the best control, corrected for how many there are); `published.py`.

May import: `tango_core`, `pipeline` and `jobs.config`. It knows neither pages nor MLflow.

A new number: count what it needs in `measurements.py` or `outcomes.py`, add a field to
`CellSummary` with its JSON key, and fill it in `summary.py`.
"""
