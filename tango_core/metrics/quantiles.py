"""Labels of clips as numbers, and quantiles of Student's t without scipy."""

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


def z_quantile(level: float) -> float:
    """How many standard errors a two-sided normal interval of this coverage reaches."""
    return NormalDist().inv_cdf((1 + level) / 2)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t above its median; t = sqrt(df) tan(theta) has a simple density.

    Args:
        probability: In (0.5, 1).
        degrees: Degrees of freedom, at least 1.
    """
    if degrees > 10_000:
        return NormalDist().inv_cdf(probability)
    theta = np.linspace(0.0, np.pi / 2, 100_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = np.interp((2 * probability - 1) * mass[-1], mass, theta)
    return float(degrees**0.5 * np.tan(angle))
