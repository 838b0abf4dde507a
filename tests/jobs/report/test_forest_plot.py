"""The figure of differences by group: every point where it belongs, filled where it survives."""

from dataclasses import replace

import numpy as np
import pytest
from fake_answers import cell, facts_of, fake_answers
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex

from jobs.report.difference_plots import MOST_VALUES, caption_of, forest_plot, values_of
from jobs.report.plots import draw_forests
from jobs.report.theme import DARK, LIGHT
from jobs.results.comparisons import families_of
from jobs.results.summary import summarize

CELLS = (cell("full"), *(cell(name, share) for name in ("tango", "random") for share in (0.1, 0.2)))


@pytest.fixture(scope="module")
def cells():
    facts = facts_of(*CELLS)
    return summarize(fake_answers(facts, num_clips=60), facts).cells


def points_of(panel):
    """(difference, place, filled) of every point, and of every diamond."""
    return [
        [
            (x, y, to_hex(face) == to_hex(edge))
            for (x, y), face, edge in zip(
                one.get_offsets(), one.get_facecolors(), one.get_edgecolors(), strict=True
            )
        ]
        for one in panel.collections
        if isinstance(one, PathCollection)
    ]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_every_difference_is_drawn_in_its_row_and_filled_if_it_survives(cells, theme):
    family = families_of(cells)[0]
    figure = forest_plot(family, lambda one: one.method, theme)
    values = list(values_of(family))
    assert [panel.get_title("left") for panel in figure.axes] == ["tango", "random"]
    for panel in figure.axes:
        drawn, whole = points_of(panel)
        members = [m for m in family.members if m.cell.method == panel.get_title("left")]
        assert len(drawn) == len(members) == 6
        for member, (x, y, filled) in zip(members, drawn, strict=True):
            assert x == pytest.approx(100 * member.paired.difference)
            assert abs(y - values.index(member.value)) < 0.5
            assert filled == member.survives
        low, high = panel.get_xlim()
        assert low < min(x for x, *_ in drawn) < max(x for x, *_ in drawn) < high
        assert [x for x, *_ in whole] == pytest.approx(
            [
                100 * one.versus_full.paired.difference
                for one in cells
                if one.method == panel.get_title("left")
            ]
        )


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
    figure = forest_plot(many, lambda one: one.method, LIGHT)
    assert len(points_of(figure.axes[0])[0]) == MOST_VALUES


def test_intervals_of_too_few_clips_are_dotted_and_do_not_set_the_scale(cells):
    family = families_of(cells)[0]
    first = family.members[0]
    wide = replace(first.paired, low=-1.0, high=1.0, too_few_clips=True)
    odd = replace(family, members=(replace(first, paired=wide), *family.members[1:]))
    panel = forest_plot(odd, lambda one: one.method, LIGHT).axes[0]
    assert np.abs(panel.get_xlim()).max() < 90
    lines = [one for one in panel.collections if isinstance(one, LineCollection)]
    dotted = [
        segment[:, 0].tolist()
        for one in lines
        for segment, style in zip(one.get_segments(), one.get_linestyles(), strict=True)
        if style[1] is not None
    ]
    own = [m.paired for m in odd.members if m.cell.method == first.cell.method]
    own += [one.versus_full.paired for one in cells if one.method == first.cell.method]
    assert sorted(dotted) == sorted(
        [100 * paired.low, 100 * paired.high] for paired in own if paired.too_few_clips
    )
    assert [-1.0, 1.0] in [[paired.low, paired.high] for paired in own]


def test_names_of_files_are_plain_and_different_whatever_groups_are_called(cells):
    by = cells[1].versus_full.by_group["accuracy"]["duration"]
    groups = {"../x": by, "..\\X": by, "$\\frac{": by, "one value": dict(list(by.items())[:1])}
    versus = replace(cells[1].versus_full, by_group={"accuracy": groups})
    drawn = draw_forests([cells[0], replace(cells[1], versus_full=versus)])
    assert list(drawn) == [
        "differences_by_x.png",
        "differences_by_x_2.png",
        "differences_by_frac.png",
    ]
