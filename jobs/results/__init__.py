"""From answers to numbers: facts of a run, summaries, scores, comparisons, published figures.

What lives here: `facts.py` (what a run says about itself); `plain.py`, `quantities.py`,
`cell_summary.py` and `run_summary.py` (the types of a summary and their JSON); `reduction.py`
(reads answers part by part into `outcomes.py`, one byte per question and cell, and
`cell_totals.py`, sums that `table_totals.py` fills; `answer_columns.py` is one table of them);
`summary.py`, `scores.py`, `compared.py`, `distribution.py` and `failures.py` (numbers from these);
`question_scores.py` (a score per question); `baselines.py` and `weights.py` (what is comparable);
`against_controls.py` (methods beside the best control); `group_differences.py` (differences by
group, corrected for how many there are); `replicates.py` (the same cells with several trainings of
a model) and `replicable.py` (runs that are none); `headlines.py` (what metrics are called);
`published.py`.

May import: `tango_core` and the rooms below (`config`). It knows neither pages nor MLflow.

A new number: count what it needs in `table_totals.py` or `outcomes.py`, add a field to
`CellSummary` with its JSON key, and fill it in `summary.py`.
"""
