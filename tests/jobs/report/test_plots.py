"""Plots: every number where it belongs, as SVG that shows and hides nothing else."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.charts import WIDTH, in_one_file, pareto_front, score_panels

CELLS = (cell("full"), *(cell(name, share) for name in ("tango", "random") for share in (0.1, 0.2)))


@pytest.fixture(scope="module")
def cells():
    facts = facts_of(*CELLS)
    return summarize(fake_answers(facts, num_clips=60), facts).cells


def marks_of(panel):
    """Name and place of every point of a panel."""
    found = []
    for group in ElementTree.fromstring(panel).iter("g"):
        title = group.find("title")
        if title is not None:
            x, y = map(float, re.findall(r"[-\d.]+", group.get("transform")))
            found.append((title.text, x, y))
    return found


def texts_of(panel):
    return [text.text for text in ElementTree.fromstring(panel).iter("text")]


@pytest.mark.parametrize("seed", range(5))
def test_the_front_is_all_points_that_none_beats(seed):
    generator = np.random.default_rng(seed)
    points = [tuple(point) for point in generator.integers(0, 6, (12, 2)).tolist()]
    front = pareto_front(points)
    assert len(front) == len({points[index] for index in front})
    assert {points[index] for index in front} == {
        one
        for one in points
        if not any(o[0] <= one[0] and o[1] >= one[1] and o != one for o in points)
    }
    assert [points[index] for index in front] == sorted(points[index] for index in front)


def test_scores_stand_over_their_cost_and_the_front_is_ringed(cells):
    tokens, time, legend = score_panels(cells)
    for panel in (tokens, time):
        marks = {name.partition(":")[0]: place for name, *place in marks_of(panel)}
        assert set(marks) == {one.name for one in cells}
        by_score = sorted(cells, key=lambda one: one.headline.value)
        heights = [marks[one.name][1] for one in by_score]
        assert heights == sorted(heights, reverse=True)
        assert all(0 < x < WIDTH for x, _ in marks.values())
    by_tokens = sorted(cells, key=lambda one: one.equivalent_retention)
    places = {name.partition(":")[0]: x for name, x, _ in marks_of(tokens)}
    assert [places[one.name] for one in by_tokens] == sorted(places.values())
    front = pareto_front([(one.equivalent_retention, one.headline.value) for one in cells])
    assert tokens.count("<circle") == len(front)
    assert {"tango", "random", "full: all tokens, with its interval"} <= set(texts_of(legend))


def test_a_file_is_whole_svg_with_both_themes(cells):
    panels = score_panels(cells)
    text = in_one_file(panels)
    assert len(ElementTree.fromstring(text).findall("{*}svg")) == len(panels)
    assert "prefers-color-scheme: dark" in text
