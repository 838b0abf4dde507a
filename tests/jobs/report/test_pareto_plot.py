"""Which cells are the best trade-offs, and that the figure shows them."""

import numpy as np
import pytest

from jobs.report.plots import milliseconds_of, pareto, pareto_front, percent_of_tokens
from jobs.report.theme import LIGHT


def beaten(points, index):
    """Whether another point costs no more, is worth no less, and differs."""
    cost, value = points[index]
    return any(
        other[0] <= cost and other[1] >= value and other != points[index] for other in points
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_all_points_that_none_beats(seed):
    generator = np.random.default_rng(seed)
    points = [tuple(point) for point in generator.integers(0, 6, (12, 2)).tolist()]
    front = pareto_front(points)
    assert len(front) == len({points[index] for index in front})
    assert {points[index] for index in front} == {
        points[index] for index in range(12) if not beaten(points, index)
    }
    assert [points[index] for index in front] == sorted(points[index] for index in front)


def test_the_figure_numbers_the_front_and_says_what_it_is(sweep):
    cells = sweep[0].cells
    styles = {cell.method: (LIGHT.series[0], "o") for cell in cells}
    figure = pareto(cells, lambda cell: cell.method, styles, LIGHT)
    for panel, cost in zip(figure.axes, (milliseconds_of, percent_of_tokens), strict=True):
        front = pareto_front([(cost(cell), cell.headline.value) for cell in cells])
        words = "\n".join(text.get_text() for text in panel.texts)
        for number, index in enumerate(front, 1):
            assert f"{number}  {cells[index].name}" in words
    assert pareto(cells[:1], lambda cell: cell.method, styles, LIGHT) is None
