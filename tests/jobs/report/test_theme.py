"""Figures as files."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from jobs.report.theme import DARK, LIGHT, handles_of, legend, new_figure, png


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_a_png_has_the_pixels_that_matplotlib_would_save(theme):
    def figure():
        figure, panels = new_figure((6, 3), theme, rows=2)
        for panel in panels:
            panel.plot([0, 1, 2], [3, 1, 2], label="a method with a long name")
            panel.set_ylabel("accuracy (%)")
        legend(figure, handles_of(panels[:1]), theme)
        return figure

    ours = np.asarray(Image.open(io.BytesIO(png(figure()))))
    stream = io.BytesIO()
    figure().savefig(stream, format="png", dpi=160, facecolor=theme.background)
    stream.seek(0)
    assert np.array_equal(ours, np.asarray(Image.open(stream).convert("RGB")))


def test_what_stands_between_dollar_signs_is_no_formula():
    figure, (panel,) = new_figure((4, 2), LIGHT)
    panel.set_title("$\\frac{1$ of a name")
    assert png(figure).startswith(b"\x89PNG")
