"""Figures as files."""

import pytest

from jobs.report.theme import DARK, LIGHT, new_figure, png, svg


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_what_stands_between_dollar_signs_is_no_formula(theme):
    figure, (panel,) = new_figure((4, 2), theme)
    panel.set_title("$\\frac{1$ of a name")
    assert png(figure).startswith(b"\x89PNG")
    assert svg(figure) == svg(figure)
