"""Comparisons of two runs: against scipy, brute force, and pairs drawn from a known truth."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tango_core.metrics import compare_clips, compare_paired
from tango_core.metrics.comparison import holm_adjusted, mcnemar_p_value, sign_flip_p_value


def draw_pairs(rng, num_runs, num_clips, size, base, difference, *, by_clip):
    """Draw right and wrong answers of two runs (probit model with random effects).

    Args:
        rng: Generator.
        num_runs: Independent draws.
        num_clips: Clips.
        size: Questions of each clip.
        base: Accuracy of the baseline.
        difference: Accuracy of the other run minus `base`; taken downwards where `base` is high.
        by_clip: Share of the variance with which a clip favours one of the runs, in [0, 0.5]: 0 is
            no clustering of the changes, 0.5 is strong.

    Returns:
        (num_runs, num_clips, size) bool of the run and of the baseline, and the true difference.
    """
    sizes = np.full(num_clips, size)
    ours, theirs, truth = _draw_answers(rng, num_runs, sizes, base, difference, by_clip)
    shape = (num_runs, num_clips, size)
    return ours.reshape(shape), theirs.reshape(shape), truth


def draw_changes(rng, num_runs, sizes, base, difference, *, by_clip):
    """`draw_pairs` for clips with `sizes` questions, summed over the questions of each clip.

    Returns:
        (num_runs, num_clips) questions that only the run, and that only the baseline answers, and
        the true difference.
    """
    ours, theirs, truth = _draw_answers(rng, num_runs, sizes, base, difference, by_clip)
    starts = np.cumsum(sizes) - sizes
    gained, lost = (
        np.add.reduceat(one.astype(float), starts, axis=1)
        for one in (ours & ~theirs, theirs & ~ours)
    )
    return gained, lost, truth


def _draw_answers(rng, num_runs, sizes, base, difference, by_clip):
    """(num_runs, num_questions) right and wrong answers of two runs, and the true difference."""
    other = base - difference if base > 0.5 else base + difference
    clips = np.repeat(np.arange(len(sizes)), sizes)

    def of_clips():
        return rng.standard_normal((num_runs, len(sizes)))[:, clips]

    def of_questions():
        return rng.standard_normal((num_runs, len(clips)))

    shared = np.sqrt(0.3) * of_clips() + np.sqrt(0.2) * of_questions()
    runs = []
    for accuracy in (other, base):
        effects = np.sqrt(by_clip) * of_clips() + np.sqrt(0.5 - by_clip) * of_questions()
        runs.append(shared + effects < NormalDist().inv_cdf(accuracy))
    return runs[0], runs[1], other - base


def compare(ours, theirs):
    """Compare one drawn pair, (clips, size) each."""
    clips = np.repeat(np.arange(ours.shape[0]), ours.shape[1])
    return compare_paired(ours.ravel(), theirs.ravel(), clips)


class TestInterval:
    def test_one_question_per_clip_is_the_paired_t_interval(self):
        rng = np.random.default_rng(0)
        ours, theirs = rng.random(60) < 0.7, rng.random(60) < 0.5
        result = compare_paired(ours, theirs, np.arange(60))
        expected = stats.ttest_rel(ours.astype(float), theirs.astype(float)).confidence_interval()
        assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
        assert not result.too_few_clips

    @pytest.mark.parametrize("by_clip", [0.0, 0.4])
    @pytest.mark.parametrize(
        ("num_clips", "base", "difference"),
        [(5, 0.5, 0.05), (10, 0.5, 0.2), (20, 0.7, 0.05), (40, 0.9, 0.01), (200, 0.99, 0.05)],
    )
    def test_it_covers_the_truth_in_93_to_97_percent(self, num_clips, base, difference, by_clip):
        rng = np.random.default_rng(5)
        ours, theirs, truth = draw_pairs(rng, 1500, num_clips, 3, base, difference, by_clip=by_clip)
        results = [compare(*pair) for pair in zip(ours, theirs, strict=True)]
        trusted = [r for r in results if not r.too_few_clips]
        assert len(trusted) > 0.6 * len(results)
        assert 0.93 <= np.mean([r.low <= truth <= r.high for r in trusted]) <= 0.97

    @pytest.mark.parametrize("by_clip", [0.0, 0.5])
    @pytest.mark.parametrize(
        ("sizes", "num_clips", "difference"),
        [
            ([1, 3, 3, 12], 12, 0.05),
            ([1, 3, 3, 12], 40, 0.0),
            ([1] * 15 + [2, 4, 6, 9, 20], 40, 0.05),
            ([3] * 39 + [117], 40, 0.05),
        ],
    )
    def test_clips_of_unequal_size_are_covered_in_at_least_93_percent(
        self, sizes, num_clips, difference, by_clip
    ):
        rng, sizes = np.random.default_rng(8), np.resize(sizes, num_clips)
        gained, lost, truth = draw_changes(rng, 2000, sizes, 0.5, difference, by_clip=by_clip)
        results = [compare_clips(*clips, sizes) for clips in zip(gained, lost, strict=True)]
        trusted = [r for r in results if not r.too_few_clips]
        assert len(trusted) > 0.6 * len(results)
        assert np.mean([r.low <= truth <= r.high for r in trusted]) >= 0.93

    @pytest.mark.parametrize(
        ("num_clips", "base", "difference"), [(5, 0.9, 0.01), (10, 0.99, 0.05), (40, 0.99, 0.01)]
    )
    def test_where_few_clips_change_it_says_so_and_errs_on_the_wide_side(
        self, num_clips, base, difference
    ):
        rng = np.random.default_rng(6)
        ours, theirs, truth = draw_pairs(rng, 500, num_clips, 3, base, difference, by_clip=0.4)
        results = [compare(*pair) for pair in zip(ours, theirs, strict=True)]
        assert np.mean([r.too_few_clips for r in results]) > 0.8
        assert np.mean([r.low <= truth <= r.high for r in results]) >= 0.95

    @pytest.mark.parametrize("num_clips", [1, 2, 12, 400])
    def test_equal_runs_have_an_interval_with_a_width(self, num_clips):
        right, clips = [True, False, True] * num_clips, np.repeat(np.arange(num_clips), 3)
        result = compare_paired(right, right, clips)
        assert result.difference == 0
        assert result.low == pytest.approx(-result.high)
        assert result.high > 0.005
        assert result.p_value == 1
        assert result.too_few_clips

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(
            st.tuples(st.booleans(), st.booleans(), st.integers(0, 7)), min_size=1, max_size=60
        )
    )
    def test_it_holds_the_difference_and_stays_in_bounds(self, rows):
        ours, theirs, clips = zip(*rows, strict=True)
        result = compare_paired(ours, theirs, clips)
        assert -1 <= result.low <= result.difference <= result.high <= 1
        assert result.low < result.high
        assert 0 <= result.p_value <= 1
        mirrored = compare_paired(theirs, ours, clips)
        assert (mirrored.low, mirrored.high) == pytest.approx((-result.high, -result.low))
        assert mirrored.p_value == pytest.approx(result.p_value)

    def test_runs_of_different_length_are_refused(self):
        with pytest.raises(ValueError, match="same questions"):
            compare_paired([True], [True, False], [0])


class TestDetectableDifference:
    def test_a_difference_of_that_size_is_found_four_times_in_five(self):
        rng = np.random.default_rng(2)
        ours, theirs, truth = draw_pairs(rng, 800, 120, 3, 0.7, 0.09, by_clip=0.1)
        results = [compare(*pair) for pair in zip(ours, theirs, strict=True)]
        expected = np.mean([r.detectable_difference for r in results])
        assert expected == pytest.approx(abs(truth), rel=0.05)
        assert np.mean([r.p_value < 0.05 for r in results]) == pytest.approx(0.8, abs=0.05)


class TestPValue:
    @pytest.mark.parametrize("by_clip", [0.0, 0.5])
    @pytest.mark.parametrize("num_clips", [20, 40, 100])
    def test_a_true_null_is_rejected_in_at_most_6_percent(self, num_clips, by_clip):
        rng = np.random.default_rng(11)
        ours, theirs, _ = draw_pairs(rng, 4000, num_clips, 5, 0.7, 0.0, by_clip=by_clip)
        changes = (ours.astype(int) - theirs).sum(axis=2)
        rejected = np.mean([sign_flip_p_value(change) < 0.05 for change in changes])
        assert rejected <= 0.06
        if (changes != 0).sum(axis=1).mean() > 30:
            assert rejected >= 0.04

    def test_it_counts_every_pattern_of_signs_and_half_of_the_ties(self):
        changes = np.array([3, -1, 1, 2, 0, 1, -2])
        sums = [abs(np.dot(signs, changes)) for signs in itertools.product((1, -1), repeat=7)]
        total = abs(changes.sum())
        assert total > 0
        expected = np.mean([1.0 if s > total else 0.5 if s == total else 0.0 for s in sums])
        assert sign_flip_p_value(changes) == pytest.approx(expected)

    def test_many_clips_go_over_to_the_normal_distribution_without_a_step(self):
        rng = np.random.default_rng(4)
        changes = rng.choice([-2, -1, 1, 2], size=2000, p=[0.2, 0.28, 0.32, 0.2])
        exact, normal = sign_flip_p_value(changes), sign_flip_p_value(np.append(changes, [1, -1]))
        assert normal == pytest.approx(exact, rel=0.02)

    @pytest.mark.parametrize(
        ("gained", "lost"),
        [(0, 0), (1, 0), (3, 10), (4, 4), (7, 6), (700, 800), (1000, 1200), (3000, 2)],
    )
    def test_mcnemar_matches_the_binomial_test(self, gained, lost):
        expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert mcnemar_p_value(gained, lost) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_example_of_the_method():
    # 4 x 0.005, 3 x 0.01, then 0.03 and 0.04 stand behind 2 x 0.03.
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
