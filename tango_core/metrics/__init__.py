"""Scores and comparisons with confidence intervals clustered by clip.

`metric.py` defines metrics, `intervals.py` computes means with intervals, `comparison.py` compares
two runs on the same questions: difference, interval, p values with Holm's correction. Imports numpy
and scipy only.
"""

from tango_core.metrics.comparison import Comparison, compare_clips, compare_paired
from tango_core.metrics.intervals import Estimate, RunningEstimate, clustered_accuracy
from tango_core.metrics.metric import (
    ACCURACY,
    GROUP_SCORE,
    MEAN_IOU,
    RECALL_03,
    RECALL_05,
    RECALL_07,
    Counted,
    Metric,
    Questions,
)

__all__ = [
    "ACCURACY",
    "GROUP_SCORE",
    "MEAN_IOU",
    "RECALL_03",
    "RECALL_05",
    "RECALL_07",
    "Comparison",
    "Counted",
    "Estimate",
    "Metric",
    "Questions",
    "RunningEstimate",
    "clustered_accuracy",
    "compare_clips",
    "compare_paired",
]
