"""Scores and comparisons whose intervals respect that questions of one clip depend on it.

`metric.py` is what a metric is, `table.py` those there are (`grouped.py` is one of them),
`accuracy.py` and `means.py` their intervals (an `estimate.py` each), `comparison.py` two runs on
the same questions, `paired_tests.py` p values, `holm.py` their correction, `quantiles.py` what all
need of Student's t. Imports numpy only.
"""

from tango_core.metrics.accuracy import (
    RunningEstimate,
    accuracy_by_group,
    accuracy_of_clips,
    clustered_accuracy,
)
from tango_core.metrics.comparison import Comparison, compare_clips, compare_paired
from tango_core.metrics.estimate import Estimate
from tango_core.metrics.means import mean_of_clips
from tango_core.metrics.metric import Counted, Metric, Questions
from tango_core.metrics.paired_tests import mcnemar_p_value, sign_flip_p_value
from tango_core.metrics.table import (
    ACCURACY,
    GROUP_SCORE,
    MEAN_IOU,
    RECALL_03,
    RECALL_05,
    RECALL_07,
)

# The name of 0.1, where accuracy was the only mean.
Accuracy = Estimate

__all__ = [
    "ACCURACY",
    "GROUP_SCORE",
    "MEAN_IOU",
    "RECALL_03",
    "RECALL_05",
    "RECALL_07",
    "Accuracy",
    "Comparison",
    "Counted",
    "Estimate",
    "Metric",
    "Questions",
    "RunningEstimate",
    "accuracy_by_group",
    "accuracy_of_clips",
    "clustered_accuracy",
    "compare_clips",
    "compare_paired",
    "mcnemar_p_value",
    "mean_of_clips",
    "sign_flip_p_value",
]
