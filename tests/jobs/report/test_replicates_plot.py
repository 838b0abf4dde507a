"""The figure of several trainings has what can be compared in it."""

from __future__ import annotations

import pytest

from jobs.report.difference_plots import replicates_figure
from jobs.report.theme import LIGHT
from jobs.results.cell_summary import CellSummary
from jobs.results.replicates import ReplicatedCell
from tango_core.metrics import clustered_accuracy


def _cell(method, retention):
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
        ([("random", 0.1), ("block", 0.0625)], ["shapes, 6.25 %", "10 %"]),
    ],
)
def test_a_retention_of_controls_alone_has_no_column_beside_methods(cells, titles):
    figure = replicates_figure([_cell("full", 1.0), *(_cell(*one) for one in cells)], LIGHT)
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ("block" in names) == (len(titles) > 1)
