"""p values for paired results: McNemar's test, and sign flips of whole clips."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

# Above this many clips that changed, the null distribution is normal to three digits of p.
_MAX_EXACT_CLIPS = 2_000
# For non-integer changes: all sign patterns of at most this many clips, else randomly drawn
# patterns.
_MAX_ENUMERATED_CLIPS = 13
_DRAWN_PATTERNS = 10_000
_SEED = 20_240


def mcnemar_p_value(num_gained: int, num_lost: int) -> float:
    """Two-sided exact p value of McNemar's test: a fair coin falls at least this unevenly.

    It regards the questions as independent. Being exact, it rejects a true null hypothesis in less
    than 5 % of cases: in 2.1 to 3.3 % with 11 to 33 discordant questions.

    Args:
        num_gained: Questions only the first run answers correctly.
        num_lost: Questions only the second run answers correctly.
    """
    fewer, discordant = int(min(num_gained, num_lost)), int(num_gained) + int(num_lost)
    return min(1.0, 2 * float(special.bdtr(fewer, discordant, 0.5)))


def sign_flip_p_value(changes: npt.ArrayLike) -> float:
    """Two-sided mid-p value of the permutation test that exchanges the runs clip by clip.

    If the runs do not differ, exchanging all answers of one clip between them changes nothing, so
    every clip's change could as well have had the other sign (Fisher's randomisation test with
    clips as units; Edgington and Onghena, "Randomization Tests", 4th ed., 2007, chapter 5). The
    distribution of the sum over all sign patterns is computed exactly, without drawing. A sum as
    far from zero as the observed one counts half (mid-p; Lancaster, "Significance tests in discrete
    distributions", J. American Statistical Association 56, 1961): counted whole, few clips would
    reject far too rarely. More than 2,000 clips that changed are compared with the normal
    distribution.

    Args:
        changes: (G,) whole numbers, one per clip: questions gained minus questions lost.
    """
    flips = np.abs(np.asarray(changes, dtype=np.int64))
    total = abs(int(np.asarray(changes, dtype=np.int64).sum()))
    flips = flips[flips > 0]
    if total == 0:
        return 1.0
    if len(flips) > _MAX_EXACT_CLIPS:
        return math.erfc(total / math.sqrt(2 * float((flips.astype(np.float64) ** 2).sum())))
    chances = np.ones(1)
    for size, count in zip(*np.unique(flips, return_counts=True), strict=True):
        chances = np.convolve(chances, _sums_of_equal_flips(int(size), int(count)))
    sums = np.abs(np.arange(len(chances)) - len(chances) // 2)
    return min(1.0, float(chances[sums > total].sum() + chances[sums == total].sum() / 2))


def real_sign_flip_p_value(changes: npt.ArrayLike) -> float:
    """`sign_flip_p_value` of changes that are no whole numbers: sums of IoUs or of group scores.

    All sign patterns of up to 13 clips that changed are looked at. Of more clips 10,000 patterns
    are drawn with a fixed seed, and p is at least 1 / 10,001 (Phipson and Smyth, "Permutation
    p-values should never be zero", Statistical Applications in Genetics and Molecular Biology 9,
    2010); the order of clips makes no difference. More than 2,000 clips are compared with the
    normal distribution.

    Args:
        changes: (G,) one number per clip: the sum of the changes of its questions' scores.
    """
    values = np.asarray(changes, dtype=np.float64)
    # Sums of the same numbers in another order differ in the last digits.
    near = 1e-9 * max(1.0, float(np.abs(values).sum()))
    flips = np.sort(np.abs(values[np.abs(values) > near / max(1, len(values))]))
    total = abs(float(values.sum()))
    if total <= near:
        return 1.0
    if len(flips) > _MAX_EXACT_CLIPS:
        return math.erfc(total / math.sqrt(2 * float(flips @ flips)))
    drawn = len(flips) > _MAX_ENUMERATED_CLIPS
    if drawn:
        generator, size = np.random.default_rng(_SEED), (_DRAWN_PATTERNS, len(flips))
        patterns = generator.integers(2, size=size, dtype=np.int8)
    else:
        counts = np.arange(1 << len(flips))
        patterns = (counts[:, None] >> np.arange(len(flips)) & 1).astype(np.int8)
    parts = np.array_split(patterns, 1 + len(patterns) // 1000)  # in floats eight times as large
    sums = np.abs(np.concatenate([part @ (2 * flips) for part in parts]) - flips.sum())
    far, equal = int((sums > total + near).sum()), int((np.abs(sums - total) <= near).sum())
    if drawn:
        return min(1.0, (far + equal / 2 + 1) / (_DRAWN_PATTERNS + 1))
    return min(1.0, (far + equal / 2) / len(patterns))


def _sums_of_equal_flips(size: int, count: int) -> npt.NDArray[np.float64]:
    """Chances of the sums -count*size .. count*size of `count` numbers that are +size or -size."""
    positive = np.arange(count + 1)
    log_choose = -special.betaln(positive + 1, count - positive + 1) - math.log(count + 1)
    chances = np.zeros(2 * count * size + 1)
    chances[:: 2 * size] = np.exp(log_choose - count * math.log(2))
    return chances


# An adjusted p value below it counts as a difference.
LEVEL = 0.05


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p values, which control the family-wise error rate.

    Step-down Bonferroni (Holm, "A simple sequentially rejective multiple test procedure",
    Scandinavian J. of Statistics 6, 1979): the i-th smallest of n is multiplied by n - i + 1, and
    none becomes smaller than one before it. The tests may depend on each other in any way.

    Args:
        p_values: In [0, 1], in any order.

    Returns:
        In [0, 1], in the same order.
    """
    ordered = np.sort(p_values)
    steps = np.minimum(1.0, np.maximum.accumulate(ordered * np.arange(len(ordered), 0, -1)))
    return [float(steps[at]) for at in np.searchsorted(ordered, p_values, side="right") - 1]
