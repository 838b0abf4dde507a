"""Means of scores between 0 and 1, and their comparisons, against simulation and enumeration."""

from itertools import product

import numpy as np
import pytest

from tango_core.metrics import (
    ACCURACY,
    MEAN_IOU,
    RECALL_05,
    Questions,
    clustered_accuracy,
)
from tango_core.metrics.comparison import real_sign_flip_p_value
from tango_core.metrics.intervals import mean_of_clips


def draw_scores(rng, num_clips, size, shift=0.0):
    """Scores such as IoUs: some are 0, the others anything up to 1; those of a clip are alike."""
    clip = rng.normal(0.35 + shift, 0.2, num_clips)[:, None]
    return np.clip(clip + rng.normal(0, 0.25, (num_clips, size)), 0, 1)


class TestMean:
    @pytest.mark.parametrize(("num_clips", "size"), [(12, 3), (60, 2), (300, 1)])
    def test_interval_covers_the_truth_in_91_to_98_percent_of_simulated_runs(self, num_clips, size):
        rng = np.random.default_rng(11)
        truth = draw_scores(np.random.default_rng(5), 400_000, size).mean()
        covered = 0
        for _ in range(300):
            scores = draw_scores(rng, num_clips, size)
            found = mean_of_clips(scores.sum(axis=1), np.full(num_clips, size))
            covered += found.low <= truth <= found.high
        assert 0.91 <= covered / 300 <= 0.99

    @pytest.mark.parametrize("scores", [[0.0] * 9, [1.0] * 9, [0.4] * 9, [0.7]])
    def test_scores_that_do_not_vary_have_a_wide_interval(self, scores):
        found = mean_of_clips(scores, np.ones(len(scores)))
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.high - found.low > 0.2

    def test_many_clips_have_the_normal_interval(self):
        scores = np.random.default_rng(2).random(6000)
        found = mean_of_clips(scores, np.ones(6000))
        reach = 1.96 * scores.std(ddof=1) / 6000**0.5
        assert (found.low, found.high) == pytest.approx(
            (scores.mean() - reach, scores.mean() + reach), abs=1e-5
        )

    def test_no_question_has_no_mean(self):
        assert mean_of_clips([], []) is None
        assert mean_of_clips([0.0, 0.0], [0, 0]) is None


class TestComparison:
    @pytest.mark.parametrize("number", [9, 40])
    def test_the_order_of_clips_makes_no_difference_to_p(self, number):
        rng = np.random.default_rng(6)
        changes = rng.normal(0.05, 0.3, number)
        assert real_sign_flip_p_value(rng.permutation(changes)) == real_sign_flip_p_value(changes)

    def test_p_of_few_clips_looks_at_every_sign(self):
        changes = np.random.default_rng(4).normal(0.1, 0.3, 9)
        signs = np.array(list(product((-1, 1), repeat=9)))
        sums, total = np.abs(signs @ changes), abs(changes.sum())
        far = (sums > total + 1e-9).mean() + (np.abs(sums - total) <= 1e-9).mean() / 2
        assert real_sign_flip_p_value(changes) == pytest.approx(far)


class TestMetrics:
    @pytest.fixture
    def asked(self):
        rng = np.random.default_rng(13)
        scores = draw_scores(rng, 30, 2).ravel()
        scored = np.arange(60) % 7 != 0
        return Questions(scored, scores >= 0.5, scores, np.arange(60) // 2, [{}], np.zeros(60, int))

    def estimate(self, metric, asked):
        counts, values = metric.count(asked)
        sums = np.bincount(asked.clips[counts], weights=values[counts], minlength=30)
        return metric.estimate(sums, np.bincount(asked.clips[counts], minlength=30))

    def test_mean_iou_is_the_mean_of_scores(self, asked):
        assert self.estimate(MEAN_IOU, asked).value == pytest.approx(
            asked.scores[asked.scored].mean()
        )

    def test_recall_is_the_share_from_a_threshold_on_with_the_interval_of_accuracies(self, asked):
        found = self.estimate(RECALL_05, asked)
        reached = asked.scores[asked.scored] >= 0.5
        assert found == clustered_accuracy(reached, asked.clips[asked.scored])
        assert found == self.estimate(ACCURACY, asked)
