"""Figures as files."""

import pytest

from jobs.report.theme import DARK, LIGHT, new_figure, rendered


def drawn():
    figure, (panel,) = new_figure((4, 2))
    panel.set_title("$\\frac{1$ of a name")
    return figure


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_what_stands_between_dollar_signs_is_no_formula(theme):
    assert rendered(drawn, theme).startswith(b"\x89PNG")
    assert rendered(drawn, theme, "svg") == rendered(drawn, theme, "svg")
