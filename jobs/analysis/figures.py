"""Common parts of the analyses' figures: maps over the token grid, curves, labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jobs.report.formatting import shortened
from jobs.report.theme import Theme, handles_of
from jobs.report.theme import legend as outer_legend
from jobs.report.theme import title as panel_title

# Names of the signals as the publication spells them.
SIGNAL_NAMES = {"saliency": "p-attn", "attention": "attn"}
# Number of series with a colour and a legend entry, fewest options first; others are thin and grey.
MOST_NAMED = 16
LONGEST_NAME = 44
_MARKERS = "osD^vP*Xph<>"

Points = Sequence[Sequence[float]]


def label(
    panel: Axes,
    theme: Theme,
    title: str = "",
    x: str = "",
    y: str = "",
    grid: Literal["both", "x", "y"] = "both",
) -> None:
    """Set the title, the axis labels and the grid of a panel."""
    panel_title(panel, title, theme, fontsize=10.5)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.grid(axis=grid, color=theme.grid, linewidth=0.7)


def heat_map(
    figure: Figure,
    panel: Axes,
    values: npt.ArrayLike,
    theme: Theme,
    *,
    title: str,
    scale: str,
    limits: tuple[float, float] | None = None,
    colours: str = "viridis",
) -> None:
    """Draw (H, W) values with row 0 on top, and a colour bar.

    Args:
        figure: Figure of the panel.
        panel: Panel to draw in.
        values: (H, W).
        theme: Colours of the text.
        title: Title above the map.
        scale: Label of the colour bar; "" also omits the labels of the axes.
        limits: Ends of the colour bar; `None` for the range of the values.
        colours: Name of a colour map.
    """
    low, high = limits or (None, None)
    image = panel.imshow(
        np.asarray(values), cmap=colours, vmin=low, vmax=high, interpolation="nearest"
    )
    bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02)
    bar.set_label(scale, color=theme.foreground)
    bar.ax.tick_params(colors=theme.foreground, length=0)
    bar.outline.set_visible(False)
    panel.spines[:].set_visible(False)
    panel_title(panel, title, theme, fontsize=10.5)
    if scale:
        panel.set_xlabel("column")
        panel.set_ylabel("row")


def mark(panel: Axes, positions: Sequence[int], width: int) -> None:
    """Number positions of a map from 1 on, readable on every colour."""
    box = {"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"}
    style: dict[str, Any] = {"fontsize": 8.5, "fontweight": "bold", "color": "#ffffff", "bbox": box}
    for number, position in enumerate(positions, start=1):
        row, column = divmod(position, width)
        panel.text(column, row, str(number), ha="center", va="center", **style)


def legend(panel: Axes, theme: Theme, **options: Any) -> None:
    """Draw a legend inside a panel."""
    panel.legend(frameon=False, labelcolor=theme.foreground, fontsize=9, **options)


def legend_below(figure: Figure, panel: Axes, theme: Theme) -> None:
    """Draw one legend under all panels."""
    where = {"loc": "outside lower center", "ncols": 4, "fontsize": 8.5}
    outer_legend(figure, handles_of([panel]), theme, **where)


def dashed(theme: Theme) -> dict[str, Any]:
    """Style of a reference line."""
    return {"color": theme.foreground, "linewidth": 1, "dashes": (4, 3)}


def plain_log(panel: Axes) -> None:
    """Make the y axis logarithmic, labelled with plain numbers instead of powers of 10."""
    panel.set_yscale("log")
    axis = panel.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def draw_series(panel: Axes, series: Mapping[str, Points], theme: Theme) -> None:
    """Draw one curve per series, given as (x, y) points sorted by x."""
    named = sorted(series, key=lambda name: name.count(" "))[:MOST_NAMED]
    for name, points in series.items():
        style: dict[str, Any] = {"color": theme.grid, "linewidth": 0.9, "zorder": 1}
        if name in named:
            at = named.index(name)
            style = {
                "color": theme.series[at % len(theme.series)],
                "marker": _MARKERS[at % len(_MARKERS)],
                "label": shortened(name, LONGEST_NAME),
                "linewidth": 1.4,
                "zorder": 3,
            }
        panel.plot(*np.array(points).reshape(-1, 2).T, markersize=5, **style)
