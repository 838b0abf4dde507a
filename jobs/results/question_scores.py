"""A score for every single question, where answers are looked at one by one."""

from __future__ import annotations

import numpy as np

from jobs.results.answer_columns import RIGHT, SCORED, AnswerColumns, Values
from tango_core.benchmarks import facts_of
from tango_core.metrics import ACCURACY, Metric, Questions


def metric_of(benchmark: str) -> Metric:
    """The headline, or right and wrong where that has no value per question."""
    headline = facts_of(benchmark).metrics[0]
    return headline if headline.unit == "question" else ACCURACY


def scores_of(columns: AnswerColumns, metric: Metric) -> Values:
    """(n,) value of every answer in [0, 1]; NaN where nobody knows the right answer.

    Args:
        columns: Answers.
        metric: Has a value per question.
    """
    scored, right = (columns.bits & SCORED) > 0, (columns.bits & RIGHT) > 0
    no_groups = np.zeros(len(columns), np.int64)
    questions = Questions(scored, right, columns.scores, columns.clips, [{}], no_groups)
    return np.where(scored, metric.count(questions).values, np.nan)
