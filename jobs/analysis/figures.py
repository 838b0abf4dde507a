"""Common parts of the analyses' figures: maps over the token grid, curves, labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy.typing as npt
import pandas as pd
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
    values: npt.NDArray[Any],
    theme: Theme,
    *,
    title: str,
    scale: str,
    **style: Any,
) -> None:
    """Draw (H, W) values with row 0 on top, and a colour bar.

    Args:
        figure: Figure of the panel.
        panel: Panel to draw in.
        values: (H, W).
        theme: Colours of the text.
        title: Title above the map.
        scale: Label of the colour bar.
        style: Keyword arguments of `Axes.imshow`.
    """
    image = panel.imshow(values, interpolation="nearest", **style)
    bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02)
    bar.set_label(scale, color=theme.foreground)
    bar.ax.tick_params(colors=theme.foreground, length=0)
    bar.outline.set_visible(False)
    panel.spines[:].set_visible(False)
    panel_title(panel, title, theme, fontsize=10.5)


def mark(panel: Axes, positions: Sequence[int], width: int) -> None:
    """Number positions of a map from 1 on, readable on every colour."""
    box = {"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"}
    style: dict[str, Any] = {"fontsize": 8.5, "fontweight": "bold", "color": "#ffffff", "bbox": box}
    for number, position in enumerate(positions, start=1):
        row, column = divmod(position, width)
        panel.text(column, row, str(number), ha="center", va="center", **style)


def legend(panel: Axes, theme: Theme, loc: Any) -> None:
    """Draw a legend inside a panel."""
    panel.legend(frameon=False, labelcolor=theme.foreground, fontsize=9, loc=loc)


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
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_tick_params(which="minor", length=0)


def draw_series(panel: Axes, rows: pd.DataFrame, x: str, y: str, theme: Theme) -> None:
    """Draw one curve per value of the column `series`, through its rows in their order."""
    curves = {str(name): own for name, own in rows.groupby("series", sort=False)}
    named = sorted(curves, key=lambda name: name.count(" "))[:MOST_NAMED]
    for name, own in curves.items():
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
        panel.plot(own[x], own[y], markersize=5, **style)


def label_bars(bars: Any, texts: Sequence[str], theme: Theme) -> None:
    """Write a text behind every bar."""
    bars.patches[0].axes.bar_label(bars, texts, padding=3, fontsize=8.5, color=theme.foreground)


def draw_bars(panel: Axes, table: pd.DataFrame, theme: Theme, **style: Any) -> None:
    """Draw horizontal bars, one group per row and one colour per column, the first row on top."""
    table.plot.barh(ax=panel, legend=False, **style)
    panel.invert_yaxis()
    names = [shortened(str(name), LONGEST_NAME) for name in table.index]
    panel.set_yticks(range(len(table)), names)
    panel.set_ylabel("")
    panel.axvline(0, color=theme.foreground, linewidth=0.8)
