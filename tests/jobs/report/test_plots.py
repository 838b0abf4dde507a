"""Plots: every number where it belongs, as SVG that shows and hides nothing else."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from summaries import summarize

from jobs.report.charts import WIDTH, Axis
from jobs.report.plots import (
    MOST_VALUES,
    caption_of,
    draw_forests,
    draw_plots,
    forest_panels,
    pareto_front,
    replicates_panels,
    save_plots,
    values_of,
)
from jobs.results.cell_summary import CellSummary
from jobs.results.comparisons import families_of
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
    for path in ElementTree.fromstring(panel).iter("path"):
        title = path.find("title")
        if title is not None:
            x, y = map(float, re.findall(r"[-\d.]+", path.get("transform")))
            found.append((title.text, x, y, path.get("class").split()[0]))
    return found


def texts_of(panel):
    return [text.text for text in ElementTree.fromstring(panel).iter("text")]


def series(one):
    return one.method


@pytest.mark.parametrize("seed", range(20))
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
    plot = draw_plots(cells)[0]
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
    assert [row[0] for row in plot.table.rows if row[4]] == [
        one.name for at, one in enumerate(cells) if at in front
    ]
    assert {"tango", "random", "full: all tokens, with its interval"} <= set(texts_of(legend))


def test_without_vision_of_a_cell_no_time_is_called_whole(cells):
    without = {name: own for name, own in cells[1].latency_ms.items() if name != "vision"}
    known = draw_plots(cells)[0].panels[1]
    cached = replace(cells[1], latency_ms=without, first_token_ms=None)
    unknown = draw_plots([cells[0], cached, *cells[2:]])[0].panels[1]
    assert "time to first token with vision, ms" in texts_of(known)
    assert "prune + prefill, ms" in texts_of(unknown)


def test_files_are_whole_svg_with_both_themes(cells, tmp_path):
    plots = [*draw_plots(cells), *draw_forests(cells)]
    save_plots(plots, tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "differences_by_duration.svg",
        "differences_by_task.svg",
        "score_vs_cost.svg",
        "latency.svg",
    }
    for path, plot in zip(
        sorted((tmp_path / "plots").iterdir()), sorted(plots, key=lambda p: p.name), strict=True
    ):
        root = ElementTree.fromstring(path.read_text())
        assert len(root.findall("{*}svg")) == len(plot.panels)
        assert "prefers-color-scheme: dark" in path.read_text()


def test_nothing_is_drawn_where_there_is_nothing(cells):
    facts = facts_of(cell("full"))
    answers = fake_answers(facts, num_clips=3)
    answers["answer"] = answers["correct"] = answers["choice"] = None
    assert [plot.name for plot in draw_plots(summarize(answers, facts).cells)] == ["latency"]


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(4.2, 110, log=True), [5, 10, 20, 50, 100]),
        (Axis(113, 196, log=True), [120, 140, 160, 180]),
        (Axis(-12, 31), [-10, 0, 10, 20, 30]),
    ],
    ids=["log", "log of a small range", "linear"],
)
def test_ticks_are_round_numbers_of_the_axis(axis, ticks):
    assert list(axis.ticks()) == pytest.approx(ticks)


def test_every_difference_is_drawn_in_its_row_and_filled_if_it_survives(cells):
    family = families_of(cells)[0]
    *panels, legend = forest_panels(family, series)
    rows = [f"{value} {n:,}" for value, n in values_of(family).items()]
    for name, panel in zip(("tango", "random"), panels, strict=True):
        assert name in texts_of(panel)
        assert [text for text in texts_of(panel) if text in [*rows, "all"]] == [*rows, "all"]
        marks = {title: (x, y, kind) for title, x, y, kind in marks_of(panel)}
        members = [member for member in family.members if member.cell.method == name]
        assert len(marks) == len(members) + 2
        drawn = []
        for member in members:
            (x, y, kind) = next(
                place
                for title, place in marks.items()
                if title.startswith(f"{member.cell.name}, {member.value}: ")
            )
            drawn.append((member.paired.difference, x, member.value, y))
            assert kind == ("mark" if member.survives else "hollow")
        drawn.sort()
        assert [x for _, x, *_ in drawn] == sorted(x for _, x, *_ in drawn)
        middle = {
            v: np.mean([y for *_, value, y in drawn if value == v]) for v in values_of(family)
        }
        assert list(middle.values()) == sorted(middle.values())
    assert "10 %" in texts_of(legend)


def test_of_many_values_those_with_most_questions_are_drawn_and_the_rest_is_counted(cells):
    family = families_of(cells)[0]
    first = family.members[0]
    members = tuple(
        replace(first, value=f"v{n}", paired=replace(first.paired, num_questions=n))
        for n in range(1, 101)
    )
    many = replace(family, members=members)
    assert set(values_of(many)) == {f"v{n}" for n in range(101 - MOST_VALUES, 101)}
    assert caption_of(many).endswith("; the 40 values with most questions of 100")
    assert len(marks_of(forest_panels(many, series)[0])) == MOST_VALUES + 1


def test_intervals_of_too_few_clips_are_dotted_and_stay_inside(cells):
    family = families_of(cells)[0]
    at = next(at for at, one in enumerate(family.members) if not one.paired.too_few_clips)
    first = family.members[at]
    wide = replace(first, paired=replace(first.paired, low=-1.0, high=1.0, too_few_clips=True))
    odd = replace(family, members=(*family.members[:at], wide, *family.members[at + 1 :]))
    panel = ("tango", "random").index(first.cell.method)
    usual, changed = (forest_panels(one, series)[panel] for one in (family, odd))
    assert changed.count(" few") == usual.count(" few") + 1
    assert [x for _, x, *_ in marks_of(changed)] == [x for _, x, *_ in marks_of(usual)]
    for path in ElementTree.fromstring(changed).iter("path"):
        if "few" in path.get("class").split():
            ends = [float(number) for number in re.findall(r"[-\d.]+", path.get("d"))[::2]]
            assert all(0 <= end <= WIDTH for end in ends)


def test_names_of_files_are_plain_and_different_whatever_groups_are_called(cells):
    by = cells[1].versus_full.by_group["accuracy"]["duration"]
    groups = {"../x": by, "..\\X": by, "$\\frac{": by, "one value": dict(list(by.items())[:1])}
    versus = replace(cells[1].versus_full, by_group={"accuracy": groups})
    drawn = draw_forests([cells[0], replace(cells[1], versus_full=versus)])
    names = ["differences_by_x", "differences_by_x_2", "differences_by_frac"]
    assert [plot.name for plot in drawn] == names


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
