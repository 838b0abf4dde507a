"""Means with 95 % intervals clustered by clip."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special


@dataclass(frozen=True)
class Estimate:
    """The mean of scores in [0, 1] and its interval: an accuracy, a mean IoU.

    Attributes:
        value: The mean, in [0, 1]; of right and wrong answers the share of right ones.
        low: Lower end of the interval, in [0, value].
        high: Upper end of the interval, in [value, 1].
        num_questions: Questions counted, or groups of questions where these have one score.
        num_clusters: Clips they belong to.
        num_effective: Effective number of independent questions, at most `num_questions`. For
            scores that are not right or wrong, the number of clips.
    """

    value: float
    low: float
    high: float
    num_questions: int
    num_clusters: int
    num_effective: float


def cluster_codes(clusters: npt.ArrayLike, num_questions: int) -> npt.NDArray[np.int64]:
    """(n,) labels as numbers 0..G-1.

    Raises:
        ValueError: If there is not one label per question.
    """
    labels = np.asarray(clusters)
    if labels.shape != (num_questions,):
        raise ValueError(
            f"clusters must be ({num_questions},), one label per question, got {labels.shape}"
        )
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def clustered_variance(
    sums: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], mean: float
) -> tuple[float, float]:
    """Variance of a mean over clustered questions, and its degrees of freedom.

    CR2, the bias-reduced cluster-robust variance, with the degrees of freedom of Satterthwaite's
    approximation for independent questions (Bell and McCaffrey, "Bias reduction in standard errors
    for linear regression with multi-stage samples", Survey Methodology 28, 2002; Pustejovsky and
    Tipton, J. Business & Economic Statistics 36, 2018). Of a mean of n questions in clips of n_g:

        var = sum_g (C_g - n_g mean)^2 / (1 - n_g / n) / n^2
        df = n^2 / (sum_g n_g^2 + sum_{g != h} b_g b_h),    b_g = n_g^2 / (n - n_g)

    Where all of G clips have as many questions, this is the plain cluster-robust variance with
    its factor G / (G - 1), and df = G - 1.

    Args:
        sums: (G,) sum C_g of the values of each clip.
        sizes: (G,) number n_g of values of each clip, above 0.
        mean: Sum of all values by their number.

    Returns:
        0 with one degree of freedom for a single clip.
    """
    if len(sizes) < 2:
        return 0.0, 1.0
    total = float(sizes.sum())
    rest = total - sizes
    residuals = sums - sizes * mean
    variance = float((residuals**2 / rest).sum()) / total
    b = sizes**2 / rest
    squares = float((sizes**2).sum()) + float(b.sum()) ** 2 - float((b**2).sum())
    return variance, max(1.0, round(total**2 / squares, 6))


def z_quantile(level: float) -> float:
    """How many standard errors a two-sided normal interval of this coverage reaches."""
    return float(special.ndtri((1 + level) / 2))


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t."""
    return float(special.stdtrit(degrees, probability))


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
    """`clustered_accuracy` from counts per clip.

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
    """Running mean score over clips, stored as counts of equal clips.

    For right and wrong answers it is at every moment equal to `clustered_accuracy` of all clips so
    far. Other scores between 0 and 1 are rounded to six digits per clip, and the interval errs on
    the wide side: it takes a question to vary as much as one that is right or wrong.
    """

    def __init__(self) -> None:
        self._clips: Counter[tuple[float, int]] = Counter()

    def add(self, right: float, asked: int) -> None:
        """Add one clip: its number of questions and the sum of their scores."""
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


def _effective_size(
    rights: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], value: float, level: float
) -> float:
    """Effective number of independent questions for these clustered ones."""
    num_questions, num_clips = float(sizes.sum()), len(sizes)
    mean_size = float((sizes**2).sum()) / num_questions
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
    usual_size = (num_questions - float((sizes**2).sum()) / num_questions) / (num_clips - 1)
    return max(0.0, between - within) / (between + (usual_size - 1) * within)


def wilson_interval(value: float, size: float, level: float) -> tuple[float, float]:
    """Wilson's score interval of a share `value` of `size` (a real number) independent trials."""
    z2 = z_quantile(level) ** 2
    centre = (value + z2 / (2 * size)) / (1 + z2 / size)
    half = (z2 * (value * (1 - value) / size + z2 / (4 * size**2))) ** 0.5 / (1 + z2 / size)
    return min(value, max(0.0, centre - half)), max(value, min(1.0, centre + half))


Floats = npt.NDArray[np.float64]

_DRAWS = 2_000
# Number of clips drawn at once; limits memory to some megabytes.
_AT_ONCE = 1_000_000
# With more clips than this the mean is normal, and the bootstrap gives the same ends.
_MAX_DRAWN_CLIPS = 5_000
_SEED = 20_240


def mean_of_clips(
    sums: npt.ArrayLike, asked: npt.ArrayLike, level: float = 0.95
) -> Estimate | None:
    """Mean of scores in [0, 1] with an interval that takes whole clips as independent units.

    Clips are drawn with replacement, 2,000 times and with a fixed seed, so that equal answers give
    an equal interval, in whichever order clips come. The quantiles are those of the expanded
    percentile interval of Hesterberg, "What Teachers Should Know About the Bootstrap", The American
    Statistician 69 (2015), section 5.3: Phi(-+ sqrt(var / var_drawn) t_df) in place of 2.5 % and
    97.5 %, because plain percentiles are too narrow for few clips; var and df are those of
    `clustered_variance`, sqrt(G / (G - 1)) t_{G-1} with G clips of one size. Above 5,000 clips the
    cluster-robust normal interval takes its place. Where all clips have the same mean, or there is
    one clip, nothing can be drawn: then the interval is Wilson's for as many independent questions
    as there are clips.

    Args:
        sums: (G,) sum of the scores of each clip's questions.
        asked: (G,) questions of each clip; clips without a question do not count.
        level: Coverage of the interval, in (0, 1).

    Returns:
        `None` if there are no questions.
    """
    sizes = np.asarray(asked, dtype=np.float64)
    totals = np.asarray(sums, dtype=np.float64)[sizes > 0]
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return None
    num_questions, num_clips = int(sizes.sum()), len(sizes)
    value = min(1.0, max(0.0, float(totals.sum() / num_questions)))
    variance, degrees = clustered_variance(totals, sizes, value)
    if variance < 1e-18:
        low, high = wilson_interval(value, num_clips, level)
        return Estimate(value, low, high, num_questions, num_clips, num_clips)
    residuals = totals - sizes * value
    drawn = float((residuals**2).sum()) ** 0.5 / num_questions
    spread = t_quantile((1 + level) / 2, degrees) * variance**0.5 / drawn
    if num_clips > _MAX_DRAWN_CLIPS:
        low, high = value - spread * drawn, value + spread * drawn
    else:
        tail = special.ndtr(-spread)
        low, high = np.quantile(_drawn_means(totals, sizes), [tail, 1 - tail]).tolist()
    low, high = min(value, max(0.0, low)), max(value, min(1.0, high))
    return Estimate(value, low, high, num_questions, num_clips, num_clips)


def _drawn_means(totals: Floats, sizes: Floats) -> Floats:
    """(draws,) means of as many clips as there are, drawn with replacement."""
    order = np.lexsort((totals, sizes))
    totals, sizes = totals[order], sizes[order]
    generator, num_clips = np.random.default_rng(_SEED), len(totals)
    step = max(1, _AT_ONCE // num_clips)
    means = []
    for start in range(0, _DRAWS, step):
        shape = (min(step, _DRAWS - start), num_clips)
        drawn = generator.integers(num_clips, size=shape)
        means.append(totals[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    return np.concatenate(means)
