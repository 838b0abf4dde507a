"""Accuracies and comparisons whose intervals respect that questions of one clip depend on it.

`accuracy.py` is one run, `comparison.py` two runs on the same questions, `quantiles.py` what both
need of Student's t. Imports numpy only.
"""

from tango_core.metrics.accuracy import (
    Accuracy,
    RunningAccuracy,
    accuracy_by_group,
    accuracy_of_clips,
    clustered_accuracy,
)
from tango_core.metrics.comparison import Comparison, compare_clips, compare_paired
from tango_core.metrics.paired_tests import mcnemar_p_value, sign_flip_p_value

__all__ = [
    "Accuracy",
    "Comparison",
    "RunningAccuracy",
    "accuracy_by_group",
    "accuracy_of_clips",
    "clustered_accuracy",
    "compare_clips",
    "compare_paired",
    "mcnemar_p_value",
    "sign_flip_p_value",
]
