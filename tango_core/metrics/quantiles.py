"""What intervals of clustered questions share: labels, variance, degrees of freedom, quantiles."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt


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
    variance = float(residuals @ (residuals / rest)) / total
    b = sizes**2 / rest
    squares = float(sizes @ sizes) + float(b.sum()) ** 2 - float(b @ b)
    return variance, max(1.0, round(total**2 / squares, 6))


def z_quantile(level: float) -> float:
    """How many standard errors a two-sided normal interval of this coverage reaches."""
    return NormalDist().inv_cdf((1 + level) / 2)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t above its median; t = sqrt(df) tan(theta) has a simple density.

    Args:
        probability: In (0.5, 1).
        degrees: Degrees of freedom, at least 1; need not be whole.
    """
    if degrees > 10_000:
        return NormalDist().inv_cdf(probability)
    theta = np.linspace(0.0, np.pi / 2, 100_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp((2 * probability - 1) * mass[-1], mass, theta)
    return float(degrees**0.5 * np.tan(angle))
