"""What is measured and published of a finished training: accuracy, model card, MLflow run.

Imports `jobs.training.recipe`, `jobs.tracking` and what `tango_core` offers to any user. A new
figure goes into `held_out.py`, and from there into `card.py` and `tracking.py`.
"""
