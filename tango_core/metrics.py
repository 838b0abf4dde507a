"""Accuracy with honest intervals: questions of one clip depend on each other, clips may be few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

# Counts that the bootstrap draws at once (about 80 MB) and in all (about ten seconds).
_DRAWS_AT_ONCE = 10_000_000
_MAX_DRAWS = 200_000_000


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers and the interval it is known to.

    Attributes:
        value: Right answers / questions, in [0, 1].
        low: Lower end of the interval, in [0, value].
        high: Upper end of the interval, in [value, 1].
        num_questions: Questions counted.
        num_clusters: Clips they belong to.
        num_effective: Independent questions that would be worth as much; at most `num_questions`.
    """

    value: float
    low: float
    high: float
    num_questions: int
    num_clusters: int
    num_effective: float


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same questions.

    Attributes:
        difference: Accuracy minus the baseline's accuracy, in [-1, 1].
        low: Lower end of the interval of the difference.
        high: Upper end of the interval of the difference.
        p_value: Two-sided exact McNemar test.
        num_questions: Questions both runs were asked.
        num_gained: Questions only this run answers correctly.
        num_lost: Questions only the baseline answers correctly.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_questions: int
    num_gained: int
    num_lost: int


def clustered_accuracy(
    correct: npt.ArrayLike, clusters: npt.ArrayLike, level: float = 0.95
) -> Accuracy | None:
    """Accuracy with a Wilson interval at the effective sample size of clustered questions.

    The design effect is the ratio of the cluster-robust (linearised) variance of the mean to
    p (1 - p) / n:

        deff = G / (G - 1) * sum_g (sum_{i in g} (y_i - p))^2 / (n p (1 - p))
        n_eff = n / max(1, deff)

    with n questions in G clusters. Few clusters estimate that variance badly, hence n_eff is also
    multiplied by (z / t_{G-1})^2, as in Korn and Graubard, "Confidence intervals for proportions
    with small expected number of positive counts estimated from survey data", Survey Methodology 24
    (1998). The Wilson score interval is then computed with n_eff in place of n; Franco, Little,
    Louis and Slud, "Comparative study of confidence intervals for proportions in complex sample
    surveys", J. Survey Statistics and Methodology 7 (2019), recommend it among others because it
    stays inside [0, 1] and has a width at 0 % and at 100 %.

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
    codes = _cluster_codes(clusters, len(right))
    if not len(right):
        return None
    value = float(right.mean())
    effective = _effective_size(right, codes, value, level)
    low, high = _wilson(value, effective, level)
    return Accuracy(value, low, high, len(right), int(codes.max()) + 1, effective)


def accuracy_by_group(
    correct: npt.ArrayLike, clusters: npt.ArrayLike, groups: Sequence[Mapping[str, str]]
) -> dict[str, dict[str, Accuracy]]:
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
    table: dict[str, dict[str, Accuracy]] = {}
    for (group, value), rows in sorted(members.items()):
        accuracy = clustered_accuracy(right[rows], labels[rows])
        assert accuracy is not None
        table.setdefault(group, {})[value] = accuracy
    return table


def compare_paired(
    correct: npt.ArrayLike,
    baseline: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    level: float = 0.95,
    num_resamples: int = 4000,
    seed: int = 0,
) -> Comparison | None:
    """Compare two runs question by question.

    The interval is the percentile interval of a bootstrap that draws whole clips with replacement
    (Field and Welsh, "Bootstrapping clustered data", J. Royal Statistical Society B 69, 2007); with
    a dozen clips or fewer it is somewhat too narrow. The p value is the exact McNemar test: it
    regards the discordant questions as independent, so where clips have several questions the
    interval is the more cautious of the two.

    Args:
        correct: (n,) bool, this run.
        baseline: (n,) bool, the other run, same questions in the same order.
        clusters: (n,) labels of clips.
        level: Coverage of the interval, in (0, 1).
        num_resamples: Bootstrap samples; fewer, but at least 500, are drawn for more than 50,000
            clips.
        seed: Equal inputs and seeds give equal intervals.

    Returns:
        `None` if there are no questions.

    Raises:
        ValueError: If the two runs differ in length.
    """
    ours, theirs = np.asarray(correct, dtype=bool), np.asarray(baseline, dtype=bool)
    if ours.shape != theirs.shape:
        raise ValueError(
            f"paired runs must answer the same questions: {ours.shape} and {theirs.shape}"
        )
    codes = _cluster_codes(clusters, len(ours))
    if not len(ours):
        return None
    change = ours.astype(np.float64) - theirs
    sums = np.bincount(codes, weights=change).astype(np.float64)
    sizes = np.bincount(codes).astype(np.float64)
    means = _resampled_means(sums, sizes, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    gained, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return Comparison(
        difference=float(change.mean()),
        low=float(low),
        high=float(high),
        p_value=mcnemar_p_value(gained, lost),
        num_questions=len(ours),
        num_gained=gained,
        num_lost=lost,
    )


def mcnemar_p_value(num_gained: int, num_lost: int) -> float:
    """Two-sided exact p value of McNemar's test: a fair coin falls at least this unevenly.

    Args:
        num_gained: Questions only the first run answers correctly.
        num_lost: Questions only the second run answers correctly.
    """
    discordant = num_gained + num_lost
    term, tail = 1, 0
    for count in range(min(num_gained, num_lost) + 1):
        tail += term
        term = term * (discordant - count) // (count + 1)
    # Python divides integers of any size exactly; as a float, 2 ** 1024 would overflow.
    return min(1.0, 2 * tail / (1 << discordant))


def _cluster_codes(clusters: npt.ArrayLike, num_questions: int) -> npt.NDArray[np.int64]:
    """(n,) labels as numbers 0..G-1."""
    labels = np.asarray(clusters)
    if labels.shape != (num_questions,):
        raise ValueError(
            f"clusters must be ({num_questions},), one label per question, got {labels.shape}"
        )
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _effective_size(
    right: npt.NDArray[np.float64], codes: npt.NDArray[np.int64], value: float, level: float
) -> float:
    """Number of independent questions that know as much as these clustered ones."""
    num_questions, sizes = len(right), np.bincount(codes)
    num_clusters = len(sizes)
    if num_clusters == 1 or value in (0.0, 1.0):
        return num_questions / float((sizes.astype(np.float64) ** 2).sum() / num_questions)
    totals = np.bincount(codes, weights=right - value)
    between = num_clusters / (num_clusters - 1) * float(totals @ totals)
    deff = max(1.0, between / (num_questions * value * (1 - value)))
    few = NormalDist().inv_cdf((1 + level) / 2) / _t_quantile((1 + level) / 2, num_clusters - 1)
    return num_questions / deff * few**2


def _wilson(value: float, size: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a share `value` of `size` (a real number) independent trials."""
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (value + z2 / (2 * size)) / (1 + z2 / size)
    half = (z2 * (value * (1 - value) / size + z2 / (4 * size**2))) ** 0.5 / (1 + z2 / size)
    return min(value, max(0.0, centre - half)), max(value, min(1.0, centre + half))


@lru_cache(maxsize=1024)
def _t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t above its median; t = sqrt(df) tan(theta) has a simple density."""
    if degrees > 10_000:
        return NormalDist().inv_cdf(probability)
    theta = np.linspace(0.0, np.pi / 2, 100_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp((2 * probability - 1) * mass[-1], mass, theta)
    return float(degrees**0.5 * np.tan(angle))


def _resampled_means(
    sums: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.float64],
    num_resamples: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """(num_resamples,) means over questions when clusters are drawn with replacement."""
    num_clusters = len(sums)
    share = np.full(num_clusters, 1 / num_clusters)
    num_resamples = min(num_resamples, max(500, _MAX_DRAWS // num_clusters))
    step = max(1, _DRAWS_AT_ONCE // num_clusters)
    means = []
    for start in range(0, num_resamples, step):
        draws = rng.multinomial(num_clusters, share, size=min(step, num_resamples - start))
        means.append((draws @ sums) / (draws @ sizes))
    return np.concatenate(means)
