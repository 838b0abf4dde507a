"""Plots: every number where it belongs, as SVG that shows and hides nothing else."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.charts import WIDTH
from jobs.report.plots import (
    pareto_front,
    replicates_panels,
    save_plots,
    score_plot,
)
from jobs.results.cell_summary import CellSummary
from jobs.results.replicates import ReplicatedCell
from tango_core.metrics import clustered_accuracy

CELLS = (cell("full"), *(cell(name, share) for name in ("tango", "random") for share in (0.1, 0.2)))


@pytest.fixture(scope="module")
def cells():
    facts = facts_of(*CELLS)
    return summarize(fake_answers(facts, num_clips=60), facts).cells


def marks_of(panel):
    """Name, place and kind of every point of a panel."""
    found = []
    for group in ElementTree.fromstring(panel).iter("g"):
        title = group.find("title")
        if title is not None:
            x, y = map(float, re.findall(r"[-\d.]+", group.get("transform")))
            found.append((title.text, x, y, group.find("path").get("class").split()[0]))
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
    plot = score_plot(cells)
    tokens, time, legend = plot.panels
    for panel in (tokens, time):
        marks = {name.partition(":")[0]: place for name, *place, _ in marks_of(panel)}
        assert set(marks) == {one.name for one in cells}
        by_score = sorted(cells, key=lambda one: one.headline.value)
        heights = [marks[one.name][1] for one in by_score]
        assert heights == sorted(heights, reverse=True)
        assert all(0 < x < WIDTH for x, _ in marks.values())
    by_tokens = sorted(cells, key=lambda one: one.equivalent_retention)
    places = {name.partition(":")[0]: x for name, x, *_ in marks_of(tokens)}
    assert [places[one.name] for one in by_tokens] == sorted(places.values())
    front = pareto_front([(one.equivalent_retention, one.headline.value) for one in cells])
    assert tokens.count("<circle") == len(front)
    assert {"tango", "random", "full: all tokens, with its interval"} <= set(texts_of(legend))


def test_files_are_whole_svg_with_both_themes(cells, tmp_path):
    plots = [score_plot(cells)]
    save_plots(plots, tmp_path / "plots")
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["score_vs_cost.svg"]
    for path, plot in zip(
        sorted((tmp_path / "plots").iterdir()), sorted(plots, key=lambda p: p.name), strict=True
    ):
        root = ElementTree.fromstring(path.read_text())
        assert len(root.findall("{*}svg")) == len(plot.panels)
        assert "prefers-color-scheme: dark" in path.read_text()


def _replicated(method, retention):
    """A cell of two trainings, half and three quarters right."""
    cells = [
        CellSummary(
            name=f"{method} r={retention:g}",
            benchmark="shapes",
            method=method,
            retention_requested=retention,
            equivalent_retention=retention,
            scores={
                "accuracy": clustered_accuracy(
                    [True] * right + [False] * (8 - right), list("aabbccdd")
                )
            },
            model="tiny",
        )
        for right in (4, 6)
    ]
    return ReplicatedCell(tuple(cells))


@pytest.mark.parametrize(
    ("cells", "titles"),
    [
        ([("topk", 0.1), ("random", 0.1), ("block", 0.0625)], ["shapes, 10 %"]),
        ([("random", 0.1), ("block", 0.0625)], ["shapes, 6.25 %", "shapes, 10 %"]),
    ],
    ids=["with a method", "controls alone"],
)
def test_a_retention_of_controls_alone_has_no_panel_beside_methods(cells, titles):
    found = [_replicated("full", 1.0), *(_replicated(*one) for one in cells)]
    panels = replicates_panels(found)
    assert [texts_of(panel)[-1] for panel in panels] == titles
    assert ("block" in texts_of(panels[0])) == (len(titles) > 1)
    assert [kind for *_, kind in marks_of(panels[-1])][-1] == "hollow"
