"""Intervals of one run against scipy and seeded simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats

from tango_core.metrics import RunningEstimate, clustered_accuracy
from tango_core.metrics.intervals import accuracy_of_clips, clustered_variance


class TestClusteredAccuracy:
    def test_one_question_per_clip_is_wilson_with_t_instead_of_z(self):
        correct = np.arange(4000) % 10 < 7
        accuracy = clustered_accuracy(correct, np.arange(4000))
        exact = stats.binomtest(2800, 4000).proportion_ci(method="wilson")
        assert accuracy.value == 0.7
        assert (accuracy.low, accuracy.high) == pytest.approx((exact.low, exact.high), abs=2e-5)

    @pytest.mark.parametrize(
        ("sizes", "num_clusters", "accuracy", "dependence"),
        [
            ([1, 3, 3, 12], 200, 0.98, 0.3),
            ([1, 3, 3, 12], 40, 0.9, 0.6),
            ([1, 3, 3, 12], 12, 0.5, 0.6),
            ([1] * 15 + [2, 4, 6, 9, 20], 40, 0.9, 0.6),
            ([3] * 39 + [117], 40, 0.7, 0.3),
        ],
    )
    def test_clips_of_unequal_size_are_covered_in_at_least_93_percent(
        self, sizes, num_clusters, accuracy, dependence
    ):
        rng = np.random.default_rng(9)
        sizes, weight = np.resize(sizes, num_clusters), 1 / dependence - 1
        shape = (2000, num_clusters)
        chances = rng.beta(accuracy * weight, (1 - accuracy) * weight, shape)
        found = [accuracy_of_clips(right, sizes) for right in rng.binomial(sizes, chances)]
        assert np.mean([one.low <= accuracy <= one.high for one in found]) >= 0.93

    @pytest.mark.parametrize("sizes", [[1, 3, 3, 12], [2, 2, 2], [5, 1], [30, 1, 1, 1, 1, 1]])
    def test_variance_and_degrees_are_cr2_and_satterthwaite(self, sizes):
        """From matrices: the regression on a constant whose residuals are adjusted clip by clip."""
        sizes, clips = np.array(sizes), np.repeat(np.arange(len(sizes)), sizes)
        values = np.random.default_rng(3).random(len(clips))
        annihilator = np.eye(len(clips)) - 1 / len(clips)
        columns = []
        for clip in range(len(sizes)):
            own = clips == clip
            block = annihilator[np.ix_(own, own)]
            adjusted = np.linalg.inv(linalg.sqrtm(block)) @ np.ones(own.sum()) / len(clips)
            columns.append(annihilator[:, own] @ adjusted)
        matrix = np.stack(columns, axis=1)
        products = matrix.T @ matrix
        sums = np.bincount(clips, weights=values)
        variance, degrees = clustered_variance(sums, sizes.astype(float), values.mean())
        assert variance == pytest.approx(float(((values @ matrix) ** 2).sum()))
        assert degrees == pytest.approx(np.trace(products) ** 2 / (products**2).sum(), abs=1e-6)

    @pytest.mark.parametrize(("answer", "touched"), [(True, "high"), (False, "low")])
    def test_all_right_or_all_wrong_still_has_a_width(self, answer, touched):
        accuracy = clustered_accuracy([answer] * 60, np.repeat(np.arange(20), 3))
        exact = stats.binomtest(20 * answer, 20).proportion_ci(method="wilson")
        assert (accuracy.low, accuracy.high) == pytest.approx((exact.low, exact.high))
        assert getattr(accuracy, touched) == float(answer)
        assert accuracy.high - accuracy.low > 0.1

    def test_no_questions_have_no_accuracy(self):
        assert clustered_accuracy([], []) is None

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=40))
    def test_interval_holds_the_value_and_stays_a_share(self, rows):
        correct, clusters = zip(*rows, strict=True)
        accuracy = clustered_accuracy(correct, clusters)
        assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 1
        assert 0 < accuracy.num_effective <= accuracy.num_questions


@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_running_accuracy_is_that_of_all_clips_so_far(clips):
    running = RunningEstimate()
    for clip in clips:
        running.add(sum(clip), len(clip))
    labels = [index for index, clip in enumerate(clips) for _ in clip]
    whole = clustered_accuracy([right for clip in clips for right in clip], labels)
    if whole is None:
        assert running.value() is None
        return
    value = running.value()
    assert (value.num_questions, value.num_clusters) == (whole.num_questions, whole.num_clusters)
    assert (value.value, value.low, value.high) == pytest.approx(
        (whole.value, whole.low, whole.high), abs=1e-9
    )
