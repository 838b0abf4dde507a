"""Accuracy with intervals that respect dependent questions of one clip, and few clips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tango_core.metrics.estimate import Estimate
from tango_core.metrics.quantiles import (
    cluster_codes,
    clustered_variance,
    t_quantile,
    z_quantile,
)


def clustered_accuracy(
    correct: npt.ArrayLike, clusters: npt.ArrayLike, level: float = 0.95
) -> Estimate | None:
    """Accuracy with a Wilson interval at the effective sample size of clustered questions.

    The design effect is the ratio of the variance of the mean (`clustered_variance`) to
    p (1 - p) / n. With few wrong (or right) answers in clips of unequal size that ratio is often
    far too small, so it is at least that of the intra-class correlation rho of a one-way analysis
    of variance, which all clips of several questions estimate together:

        deff = max(var n / (p (1 - p)), 1 + (sum_g n_g^2 / n - 1) rho, 1),    n_eff = n / deff

    with n questions in clips of n_g; where all n_g are equal, the first is never below the second.
    Few clusters estimate the variance badly, hence n_eff is also multiplied by (z / t_df)^2, as in
    Korn and Graubard, "Confidence intervals for proportions with small expected number of positive
    counts estimated from survey data", Survey Methodology 24 (1998). The Wilson score interval is
    then computed with n_eff in place of n; Franco, Little, Louis and Slud, "Comparative study of
    confidence intervals for proportions in complex sample surveys", J. Survey Statistics and
    Methodology 7 (2019), recommend it among others because it stays inside [0, 1] and has a width
    at 0 % and at 100 %. Coverage with equal and unequal n_g: `tests/perf/results/intervals.md`.

    Where the design effect cannot be estimated (all right, all wrong, or one cluster), the answers
    of a cluster are taken as fully dependent: deff = sum_g n_g^2 / n, which is the cluster size
    when all are equal.

    Args:
        correct: (n,) bool.
        clusters: (n,) labels; questions with equal labels belong to one clip.
        level: Coverage of the interval, in (0, 1).

    Returns:
        `None` if there are no questions.
    """
    right = np.asarray(correct, dtype=np.float64)
    codes = cluster_codes(clusters, len(right))
    return accuracy_of_clips(np.bincount(codes, weights=right), np.bincount(codes), level)


def accuracy_of_clips(
    right: npt.ArrayLike, asked: npt.ArrayLike, level: float = 0.95
) -> Estimate | None:
    """`clustered_accuracy` from what it needs to know of every clip.

    Args:
        right: (G,) questions of each clip that were answered correctly.
        asked: (G,) questions of each clip; clips without a question do not count.
        level: Coverage of the interval, in (0, 1).

    Returns:
        `None` if there are no questions.
    """
    sizes = np.asarray(asked, dtype=np.float64)
    rights = np.asarray(right, dtype=np.float64)[sizes > 0]
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return None
    num_questions = int(sizes.sum())
    value = float(rights.sum() / num_questions)
    effective = _effective_size(rights, sizes, value, level)
    low, high = wilson_interval(value, effective, level)
    return Estimate(value, low, high, num_questions, len(sizes), effective)


class RunningEstimate:
    """The mean score of clips that come one after the other; equal clips are kept as a number.

    For right and wrong answers it is at every moment equal to `clustered_accuracy` of all clips so
    far. Other scores between 0 and 1 are rounded to six digits per clip, and the interval errs on
    the wide side: it takes a question to vary as much as one that is right or wrong.
    """

    def __init__(self) -> None:
        self._clips: Counter[tuple[float, int]] = Counter()

    def add(self, right: float, asked: int) -> None:
        """Take one clip: how many of its questions were asked, and the sum of their scores."""
        if asked:
            self._clips[round(right, 6), asked] += 1

    def value(self, level: float = 0.95) -> Estimate | None:
        """The mean so far and its interval; `None` if there are no questions.

        Args:
            level: Coverage of the interval, in (0, 1).
        """
        clips = np.array(list(self._clips)).reshape(-1, 2)
        right, asked = np.repeat(clips, list(self._clips.values()), axis=0).T
        return accuracy_of_clips(right, asked, level)


def accuracy_by_group(
    correct: npt.ArrayLike, clusters: npt.ArrayLike, groups: Sequence[Mapping[str, str]]
) -> dict[str, dict[str, Estimate]]:
    """Accuracy for every value of every group that the questions name.

    Args:
        correct: (n,) bool.
        clusters: (n,) labels of clips.
        groups: n mappings from group to value, e.g. `{"duration": "short"}`; a question counts in
            all its groups.

    Returns:
        Group -> value -> accuracy, groups and values in alphabetical order.

    Raises:
        ValueError: If there is not one mapping per question.
    """
    right, labels = np.asarray(correct, dtype=bool), np.asarray(clusters)
    if len(groups) != len(right):
        raise ValueError(
            f"groups must hold one mapping per question: {len(groups)} for {len(right)}"
        )
    members: dict[tuple[str, str], list[int]] = {}
    for row, mapping in enumerate(groups):
        for group, value in mapping.items():
            members.setdefault((str(group), str(value)), []).append(row)
    table: dict[str, dict[str, Estimate]] = {}
    for (group, value), rows in sorted(members.items()):
        accuracy = clustered_accuracy(right[rows], labels[rows])
        assert accuracy is not None
        table.setdefault(group, {})[value] = accuracy
    return table


def _effective_size(
    rights: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], value: float, level: float
) -> float:
    """Number of independent questions that know as much as these clustered ones."""
    num_questions, num_clips = float(sizes.sum()), len(sizes)
    mean_size = float(sizes @ sizes) / num_questions
    if num_clips == 1 or value in (0.0, 1.0):
        return num_questions / mean_size
    variance, degrees = clustered_variance(rights, sizes, value)
    deff = max(
        1.0,
        variance * num_questions / (value * (1 - value)),
        1 + (mean_size - 1) * _intra_class_correlation(rights, sizes, value),
    )
    few = z_quantile(level) / t_quantile((1 + level) / 2, degrees)
    return num_questions / deff * few**2


def _intra_class_correlation(
    rights: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], value: float
) -> float:
    """Share of the variance of right and wrong answers that is between clips, in [0, 1]."""
    num_questions, num_clips = float(sizes.sum()), len(sizes)
    if num_clips == num_questions:
        return 0.0
    between = float(((rights - sizes * value) ** 2 / sizes).sum()) / (num_clips - 1)
    within = float((rights * (sizes - rights) / sizes).sum()) / (num_questions - num_clips)
    usual_size = (num_questions - float(sizes @ sizes) / num_questions) / (num_clips - 1)
    return max(0.0, between - within) / (between + (usual_size - 1) * within)


def wilson_interval(value: float, size: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a share `value` of `size` (a real number) independent trials."""
    z2 = z_quantile(level) ** 2
    centre = (value + z2 / (2 * size)) / (1 + z2 / size)
    half = (z2 * (value * (1 - value) / size + z2 / (4 * size**2))) ** 0.5 / (1 + z2 / size)
    return min(value, max(0.0, centre - half)), max(value, min(1.0, centre + half))
