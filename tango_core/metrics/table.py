"""The metrics that benchmarks name, each a function and a line.

A benchmark states them (`Benchmark.metrics`), the headline first.
"""

from __future__ import annotations

from functools import partial

from tango_core.metrics.grouped import count_groups
from tango_core.metrics.metric import Counted, Metric, Questions


def count_right(questions: Questions) -> Counted:
    """Right answers."""
    return Counted(questions.scored, questions.right.astype(float))


def count_scores(questions: Questions) -> Counted:
    """The score of every reply."""
    return Counted(questions.scored, questions.scores)


def count_above(questions: Questions, threshold: float) -> Counted:
    """Replies whose score reaches a threshold."""
    return Counted(questions.scored, (questions.scores >= threshold).astype(float))


ACCURACY = Metric("accuracy", "accuracy", count_right, right_wrong=True)
GROUP_SCORE = Metric("group_score", "group score", count_groups, unit="group")
MEAN_IOU = Metric("miou", "mIoU", count_scores, reads_scores=True)
RECALL_03, RECALL_05, RECALL_07 = (
    Metric(
        f"r1_iou_{threshold}",
        f"R@1 at IoU {threshold}",
        partial(count_above, threshold=threshold),
        right_wrong=True,
        reads_scores=True,
    )
    for threshold in (0.3, 0.5, 0.7)
)
