"""A mean over questions and the interval it is known to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """The mean of scores in [0, 1] and its interval: an accuracy, a mean IoU.

    Attributes:
        value: The mean, in [0, 1]; of right and wrong answers the share of right ones.
        low: Lower end of the interval, in [0, value].
        high: Upper end of the interval, in [value, 1].
        num_questions: Questions counted, or groups of questions where these have one score.
        num_clusters: Clips they belong to.
        num_effective: Independent questions that would be worth as much; at most `num_questions`.
            Of scores that are not right or wrong the clips, as their questions may all be alike.
    """

    value: float
    low: float
    high: float
    num_questions: int
    num_clusters: int
    num_effective: float
