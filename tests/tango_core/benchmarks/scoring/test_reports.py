"""The means that papers print, and where two of them differ."""

import pytest

from tango_core.benchmarks import benchmark_class
from tango_core.benchmarks.scoring.reports import (
    by_group,
    cross_table,
    macro_average,
    mean_score,
)

TASKS = [{"task": "plotQA"}] * 3 + [{"task": "count"}]
SCORES = [1.0, 1.0, 1.0, 0.0]


def test_m_avg_means_two_things():
    assert mean_score(SCORES) == 0.75
    assert macro_average(SCORES, TASKS, "task") == 0.5
    assert by_group(SCORES, TASKS, "task") == {"plotQA": 1.0, "count": 0.0}


def test_what_is_left_out_is_in_no_denominator():
    assert mean_score([1.0, None, 0.0]) == 0.5
    assert by_group([1.0, None, None, 0.0], TASKS, "task") == {"plotQA": 1.0, "count": 0.0}
    assert by_group([1.0, 1.0, 1.0, None], TASKS, "task") == {"plotQA": 1.0}


def test_a_failure_that_costs_a_point_lowers_the_mean():
    assert mean_score([1.0, 1.0, -1.0, 0.0]) == 0.25


def test_no_question_has_no_mean():
    assert mean_score([]) is None
    assert macro_average([None], [{"task": "count"}], "task") is None


def test_cross_table_breaks_every_length_down():
    table = benchmark_class("longvideobench").cross_table
    groups = [
        {"duration": "15", "category": "T2A"},
        {"duration": "15", "category": "S2E"},
        {"duration": "600", "category": "T2A"},
    ]
    assert cross_table([1.0, 0.0, 1.0], groups, table.rows, table.columns) == {
        "15": {"overall": 0.5, "category": {"T2A": 1.0, "S2E": 0.0}},
        "600": {"overall": 1.0, "category": {"T2A": 1.0}},
        "overall": {"overall": pytest.approx(2 / 3), "category": {"T2A": 1.0, "S2E": 0.0}},
    }


def test_every_score_needs_its_groups():
    with pytest.raises(ValueError, match="shorter"):
        by_group(SCORES, TASKS[:-1], "task")
