"""Paired comparison of two runs: difference, interval, p value, smallest detectable difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from tango_core.metrics.intervals import cluster_codes, clustered_variance, t_quantile, z_quantile

_MIN_CLIPS = 5
_ENOUGH_CHANGED_CLIPS = 6
_POWER = 0.8


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same questions.

    Attributes:
        difference: Mean score minus the baseline's, in [-1, 1]; of accuracies, if questions are
            right or wrong.
        low: Lower end of the interval of the difference, in [-1, difference].
        high: Upper end of the interval of the difference, in [difference, 1].
        p_value: Two-sided: exact McNemar test where every clip has one question that is right or
            wrong, else the permutation test that exchanges the runs clip by clip.
        num_questions: Questions both runs were asked.
        num_gained: Questions in which this run has the higher score: which only it answers
            correctly.
        num_lost: Questions in which the baseline has the higher score.
        num_clips: Clips the questions belong to.
        num_changed_clips: Clips in which at least one question was gained or lost.
        too_few_clips: There are too few clips, or clips that changed, for an interval with reliable
            coverage; `low` and `high` are then conservative.
        detectable_difference: The smallest true difference, in [0, 1], that a comparison as noisy
            as this one would find at the 5 % level with a chance of 80 %; `None` if unknown.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_questions: int
    num_gained: int
    num_lost: int
    num_clips: int
    num_changed_clips: int
    too_few_clips: bool
    detectable_difference: float | None


def compare_paired(
    scores: npt.ArrayLike, baseline: npt.ArrayLike, clusters: npt.ArrayLike, *, level: float = 0.95
) -> Comparison | None:
    """Compare two runs question by question, with whole clips as independent units.

    The interval is the cluster-robust t interval of the mean change, with the CR2 variance and
    Satterthwaite's degrees of freedom (see `clustered_variance`; Cameron and Miller, "A
    Practitioner's Guide to Cluster-Robust Inference", J. Human Resources 50, 2015, section VI). In
    simulations with 12 to 200 clips of 3 questions, of 1, 3, 3 and 12, with one clip that has half
    of all questions, and of the sizes of MLVU and LongVideoBench
    (`tests/perf/results/intervals.md`) it covers the truth in at least 93 % of cases where
    6 clips, or more than half of the clips, change in nearly every run; near that limit up to
    98.7 %, because runs with fewer are not counted. Where fewer changed, it can miss the truth in
    most cases and has no width if nothing changed. `too_few_clips` is set there,
    and the interval is the score interval of T. Tango, "Equivalence test and confidence interval
    for the difference in proportions for the paired-sample design", Statistics in Medicine 17
    (1998), at the effective number of questions (see `clustered_accuracy`): it errs on the wide
    side, the more so for scores between 0 and 1, which vary less than right and wrong answers of
    the same means.

    Args:
        scores: (n,) bool, or scores in [0, 1], of this run.
        baseline: (n,) the same of the other run, same questions in the same order.
        clusters: (n,) labels of clips.
        level: Coverage of the interval, in (0, 1).

    Returns:
        `None` if there are no questions.

    Raises:
        ValueError: If the two runs differ in length.
    """
    ours, theirs = (np.asarray(one, dtype=np.float64) for one in (scores, baseline))
    if ours.shape != theirs.shape:
        raise ValueError(
            f"paired runs must answer the same questions: {ours.shape} and {theirs.shape}"
        )
    codes = cluster_codes(clusters, len(ours))
    changes = ours - theirs
    return compare_clips(
        np.bincount(codes, weights=np.maximum(changes, 0.0)),
        np.bincount(codes, weights=np.maximum(-changes, 0.0)),
        np.bincount(codes),
        changed=(int((changes > 0).sum()), int((changes < 0).sum())),
        level=level,
    )


def compare_clips(
    gained: npt.ArrayLike,
    lost: npt.ArrayLike,
    asked: npt.ArrayLike,
    *,
    changed: tuple[int, int] | None = None,
    level: float = 0.95,
) -> Comparison | None:
    """`compare_paired` from sums per clip.

    Args:
        gained: (G,) by how much the scores of each clip's questions rose, without those that fell:
            of right and wrong answers the questions that only this run answers correctly.
        lost: (G,) by how much the scores fell that did: questions that only the baseline answers.
        asked: (G,) questions of each clip; clips without a question do not count.
        changed: Questions whose score rose, and that fell; `None` if all changes are whole.
        level: Coverage of the interval, in (0, 1).

    Returns:
        `None` if there are no questions.
    """
    sizes = np.asarray(asked, dtype=np.float64)
    gains = np.asarray(gained, dtype=np.float64)[sizes > 0]
    losses = np.asarray(lost, dtype=np.float64)[sizes > 0]
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return None
    sums, num_questions, num_clips = gains - losses, int(sizes.sum()), len(sizes)
    all_gained, all_lost = float(gains.sum()), float(losses.sum())
    num_gained, num_lost = changed or (round(all_gained), round(all_lost))
    whole = bool((gains == np.rint(gains)).all() and (losses == np.rint(losses)).all())
    difference = float(sums.sum() / num_questions)
    num_changed = int((gains + losses > 0).sum())
    too_few = num_clips < _MIN_CLIPS or (
        num_changed < _ENOUGH_CHANGED_CLIPS and 2 * num_changed <= num_clips
    )
    variance, degrees = clustered_variance(sums, sizes, difference)
    error = math.sqrt(variance)
    if too_few:
        # Variance of a question; of changes smaller than 1 a bound of it.
        alone = (all_gained + all_lost) / num_questions - difference**2
        size = _effective_size(alone, sizes, variance, degrees, level)
        share_gained, share_lost = all_gained / num_questions, all_lost / num_questions
        low, high = _score_interval(share_gained * size, share_lost * size, size, level)
        low, high = min(low, difference), max(high, difference)
        error = max(error, (high - low) / 2 / z_quantile(level))
    else:
        reach = t_quantile((1 + level) / 2, degrees) * error
        low, high = max(-1.0, difference - reach), min(1.0, difference + reach)
    if not whole:
        p_value = real_sign_flip_p_value(sums)
    elif num_questions == num_clips:
        p_value = mcnemar_p_value(num_gained, num_lost)
    else:
        p_value = sign_flip_p_value(np.rint(sums).astype(np.int64))
    return Comparison(
        difference=difference,
        low=float(low),
        high=float(high),
        p_value=p_value,
        num_questions=num_questions,
        num_gained=num_gained,
        num_lost=num_lost,
        num_clips=num_clips,
        num_changed_clips=num_changed,
        too_few_clips=too_few,
        detectable_difference=_detectable(error, degrees),
    )


def _effective_size(
    alone: float, sizes: npt.NDArray[np.float64], variance: float, degrees: float, level: float
) -> float:
    """Effective number of independent questions; a clip without a change counts as one."""
    num_questions = float(sizes.sum())
    alone = max(0.0, alone) / num_questions
    # If dependence cannot be estimated, assume full dependence within clips.
    known = alone and len(sizes) > 1
    deff = variance / alone if known else float((sizes**2).sum()) / num_questions
    few = z_quantile(level) / t_quantile((1 + level) / 2, degrees)
    return num_questions / max(1.0, deff) * few**2


def _score_interval(gained: float, lost: float, size: float, level: float) -> tuple[float, float]:
    """Tango's score interval for `gained` and `lost` of `size` pairs, which need not be whole."""
    reach, estimate = z_quantile(level), (gained - lost) / size

    def agrees(delta: float) -> bool:
        # q is the constrained maximum-likelihood estimate of the share that was lost.
        b = (2 * size - gained + lost) * delta - gained - lost
        c = -lost * delta * (1 - delta)
        q = (math.sqrt(max(0.0, b * b - 8 * size * c)) - b) / (4 * size)
        variance = size * (2 * q + delta * (1 - delta))
        return abs(gained - lost - size * delta) <= reach * math.sqrt(max(0.0, variance))

    return _edge(estimate, -1.0, agrees), _edge(estimate, 1.0, agrees)


def _edge(inside: float, outside: float, agrees: Callable[[float], bool]) -> float:
    """Bisect for the last difference between `inside` and `outside` that agrees with the data."""
    for _ in range(50):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if agrees(middle) else (inside, middle)
    return inside


def _detectable(error: float, degrees: float) -> float:
    """Difference that is found at the 5 % level with the usual power, given a standard error."""
    return float(min(1.0, (t_quantile(0.975, degrees) + t_quantile(_POWER, degrees)) * error))


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
