"""Spans of time that look like others: no number is cut, and no other unit is taken for seconds."""

import pytest

from tango_core.benchmarks.scoring.spans import read_span


@pytest.mark.parametrize(
    "reply",
    [
        "24,3 - 30,4",
        "1,024.5 - 1,030.0",
        "00:00:03,500 - 00:00:05,000",
        "1e2 - 2e2",
        "1m5s - 1m9s",
        "1 min 5 s - 1 min 9 s",
        "24.3 - 30.4 minutes",
        "frames 10 to 20 frames",
        "10 - 20 %",
        "3 to 5 to 7",
        "[[1, 2], [3, 4]]",
        "24.3-30.4 seconds. So 24 to 30.",
        "2024-10-11",
        "1 - 2 - 3",
        "3.5.1 - 4",
        "person turn 2 lights on",
        "",
    ],
)
def test_what_is_no_span_in_seconds_is_not_read_as_one(reply):
    assert read_span(reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        "The event happens in the 3 - 5.5 seonds.",
        "3s-5.5s",
        "3 seconds to 5.5 seconds",
        "[3,5.5]",
        "( 3 s, 5.5 s )",
        '{"start":3,"end":5.5}',
        "At 3 to 5.5, behind 12 minutes of talk.",
        "from 0:03 until 0:05.5 s.",
        "between 3 and 5.5 s",
        "3-5.5 seconds. So 3 to 5.5.",
    ],
)
def test_a_span_in_seconds_is_read_as_before(reply):
    assert read_span(reply) == (3.0, 5.5)


def test_clock_times_have_hours():
    assert read_span("from 1:02:03.5 until 1:02:09") == (3723.5, 3729.0)


def test_a_span_inside_the_reasoning_is_not_the_answer():
    assert read_span("<think>Maybe 1.0 - 2.0, or 5 to 6.</think>\n24.3 - 30.4") == (24.3, 30.4)
    assert read_span("<think>Maybe 1.0 - 2.0") is None
