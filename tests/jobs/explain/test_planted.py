"""`tango explain` finds planted deviations, alone and in pairs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from planted_deviations import DEVIATIONS, Deviation, base_run, by_cause, plant

from jobs.explain.explanation import NOTHING, explained, rounded_points
from tango_core.metrics import MEAN_IOU, RECALL_07

# Pairs whose causes meet in another way each: all pairs are in the slow test.
MEETING = (
    ("noise, another option", "other frame times"),
    ("other words of the prompt", "other frame times"),
    ("other positions kept", "other frame times"),
    ("reply not read in B", "options in another order"),
    ("prompt not recorded in B", "another budget"),
    ("longer words of the model", "another budget"),
    ("clips not decoded in A", "clips not decoded in B"),
    ("other weights", "other positions kept"),
)


def check(*deviations: Deviation) -> None:
    """Causes and points are those planted, and the points add up."""
    result = plant(*deviations)
    assert result.found == result.expected
    points = [share.points for share in result.explanation.shares]
    assert sum(points, Fraction(0)) == result.total == result.explanation.difference
    assert sum(rounded_points(points)) == round(10_000 * result.total)


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda one: one.name)
def test_a_single_deviation_is_found(deviation):
    check(deviation)
    explanation = plant(deviation).explanation
    assert set(by_cause(explanation)) == {deviation.cause}
    (share,) = by_cause(explanation).values()
    assert len(share.examples) == min(10, share.questions)


@pytest.mark.parametrize("names", MEETING, ids=" and ".join)
def test_overlapping_deviations_are_found(names):
    by_name = {one.name: one for one in DEVIATIONS}
    check(*(by_name[name] for name in names))


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(DEVIATIONS) - 1))
def test_all_pairs_of_deviations_are_found(at):
    for other in DEVIATIONS[at + 1 :]:
        check(DEVIATIONS[at], other)


def test_equal_results_have_no_causes():
    result = plant()
    assert result.total == 0
    assert not by_cause(result.explanation)
    assert NOTHING not in {share.cause for share in result.explanation.shares}


def test_rounded_points_keep_their_sum():
    thirds = [Fraction(1, 30_000)] * 3
    assert sum(rounded_points(thirds)) == 1
    assert rounded_points([Fraction(-1, 3), Fraction(1, 3)]) in ([-3334, 3334], [-3333, 3333])


def test_partial_scores_are_explained():
    """Partial scores count as they are, or by the headline's threshold; no score is no question."""
    a, b = base_run(), base_run()
    names = list(b.rows)
    for row in (*a.rows.values(), *b.rows.values()):
        row.update(score=0.5, correct=None)
    for name in names[:10]:
        b.rows[name].update(score=0.75, text="3 to 9", kept_digest="5eed")
    b.rows[names[10]].update(score=None, answer=None)
    for metric, points in ((MEAN_IOU, Fraction(10, 4 * 199)), (RECALL_07, Fraction(10, 199))):
        first, second = a.side(metric), b.side(metric)
        found = by_cause(explained(first, second))
        assert {share.cause: share.points for share in found.values()} == {
            "questions that only A has": 0,
            "other tokens or budgets": points,
        }
