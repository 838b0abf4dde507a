"""Means of scores that are not right or wrong, with intervals from a bootstrap of whole clips."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tango_core.metrics.accuracy import wilson_interval
from tango_core.metrics.estimate import Estimate
from tango_core.metrics.quantiles import clustered_variance, t_quantile

Floats = npt.NDArray[np.float64]

_DRAWS = 2_000
# Clips drawn at once: bounds the memory of the drawn numbers to some megabytes.
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
    drawn = float(residuals @ residuals) ** 0.5 / num_questions
    spread = t_quantile((1 + level) / 2, degrees) * variance**0.5 / drawn
    if num_clips > _MAX_DRAWN_CLIPS:
        low, high = value - spread * drawn, value + spread * drawn
    else:
        tail = NormalDist().cdf(-spread)
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
