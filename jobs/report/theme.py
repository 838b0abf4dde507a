"""Colours, panels and common parts of the plots that matplotlib draws for analyses."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from jobs.report.charts import COLOURS, NUM_COLOURS

_DPI = 160
# Keyword arguments of matplotlib.
Style = dict[str, Any]


@dataclass(frozen=True)
class Theme:
    """Colours of a figure.

    Attributes:
        name: `"light"` or `"dark"`.
        background: Background of the figure and its panels.
        foreground: Text, baseline and outlines.
        grid: Grid and axis lines.
        series: Colours of methods, distinguishable for colour-blind readers; markers differ too.
    """

    name: str
    background: str
    foreground: str
    grid: str
    series: tuple[str, ...]


def _theme(name: str, at: int) -> Theme:
    paper, ink, line = (COLOURS[part][at] for part in ("paper", "ink", "line"))
    series = tuple(COLOURS[f"s{number}"][at] for number in range(NUM_COLOURS))
    return Theme(name, paper, ink, line, series)


LIGHT, DARK = _theme("light", 0), _theme("dark", 1)


def new_figure(
    size: tuple[float, float],
    theme: Theme,
    rows: int = 1,
    columns: int = 1,
) -> tuple[Figure, list[Axes]]:
    """Create an empty figure and its panels in the theme's colours."""
    figure = Figure(figsize=size, layout="constrained", facecolor=theme.background)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.set_facecolor(theme.background)
        panel.set_axisbelow(True)
        panel.tick_params(colors=theme.foreground, length=0)
        panel.xaxis.label.set_color(theme.foreground)
        panel.yaxis.label.set_color(theme.foreground)
        for side, spine in panel.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(theme.grid)
    return figure, panels


def title(panel: Axes, text: str, theme: Theme, **style: Any) -> None:
    """Write the title of a panel."""
    panel.set_title(text, loc="left", fontweight="bold", color=theme.foreground, **style)


def legend(figure: Figure, handles: Mapping[str, Artist], theme: Theme, **style: Any) -> None:
    """Draw one legend above all panels, or where the style says; nothing without handles."""
    usual: Style = {"loc": "outside upper left", "ncols": len(handles)}
    figure.legend(
        list(handles.values()),
        list(handles),
        frameon=False,
        labelcolor=theme.foreground,
        **{**usual, **style},
    )


def handles_of(panels: Sequence[Axes]) -> dict[str, Artist]:
    """Labelled artists of some panels by their labels."""
    found: dict[str, Artist] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(str(name), handle)
    return found


def png(figure: Figure) -> bytes:
    """Render the figure as PNG; dollar signs in names are not parsed as formulas."""
    return _rendered(figure, "png")


def svg(figure: Figure) -> bytes:
    """Render the figure as SVG; equal figures give equal bytes."""
    return _rendered(figure, "svg", metadata={"Date": None})


def _rendered(figure: Figure, form: str, **options: Any) -> bytes:
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    colour = figure.get_facecolor()
    with rc_context({"svg.hashsalt": "tango"}):
        figure.savefig(stream, format=form, dpi=_DPI, facecolor=colour, **options)
    return stream.getvalue()
