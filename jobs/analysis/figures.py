"""Common figures of the analyses: maps over the token grid, curves, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from jobs.report.charts import NUM_COLOURS
from jobs.report.formatting import shortened
from jobs.report.theme import Style, legend, new_figure

# Names of the signals as the publication spells them.
SIGNAL_NAMES = {"saliency": "p-attn", "attention": "attn"}
# Number of series with a colour and a legend entry, fewest options first; others are thin and grey.
MOST_NAMED = 16
LONGEST_NAME = 50
BELOW: Style = {"loc": "outside lower center", "ncols": 4, "fontsize": 8.5}
"""Style of a legend under all panels."""
_MARKERS = "osD^vP*Xph<>"


def label(
    panel: Axes, title: str = "", x: str = "", y: str = "", grid: Literal["both", "x", "y"] = "both"
) -> None:
    """Set the title, the axis labels and the grid of a panel."""
    panel.set_title(title, fontsize=10.5)
    panel.set(xlabel=x, ylabel=y)
    panel.grid(axis=grid)


class Map(NamedTuple):
    """A map over the token grid.

    Attributes:
        title: Title above the map.
        values: (H, W).
        marked: Positions that are numbered from 1 on.
        colours: Name of a colour map.
    """

    title: str
    values: npt.NDArray[Any]
    marked: Sequence[int] = ()
    colours: str = "viridis"


def map_figure(rows: Sequence[Sequence[Map]], scale: str) -> Figure:
    """Draw maps with row 0 on top, and a colour bar with the label `scale` each."""
    height, width = rows[0][0].values.shape
    size = 4.6 * len(rows[0]), len(rows) * (3.6 * max(0.6, min(1.6, height / width)) + 0.5)
    figure, panels = new_figure(size, len(rows), len(rows[0]))
    box = {"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"}
    style: Style = {"fontsize": 8.5, "fontweight": "bold", "color": "#ffffff", "bbox": box}
    for panel, one in zip(panels, (one for row in rows for one in row), strict=True):
        image = panel.imshow(one.values, cmap=one.colours, interpolation="nearest")
        bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02, label=scale)
        bar.outline.set_visible(False)
        panel.spines[:].set_visible(False)
        panel.set_title(one.title, fontsize=10.5)
        for number, position in enumerate(one.marked, start=1):
            row, column = divmod(position, width)
            panel.text(column, row, str(number), ha="center", va="center", **style)
    return figure


def dashed() -> Style:
    """Style of a reference line."""
    return {"color": rcParams["text.color"], "linewidth": 1, "dashes": (4, 3)}


def plain_log(panel: Axes) -> None:
    """Make the y axis logarithmic, labelled with plain numbers instead of powers of 10."""
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())


def draw_series(
    panel: Axes, rows: pd.DataFrame, x: str, y: str, lines: Mapping[str, str] = {}
) -> None:
    """Draw one curve per value of the column `series`, through its rows in their order.

    Args:
        panel: Panel to draw in.
        rows: The points.
        x: Column of the x values.
        y: Column of the y values.
        lines: Series that are lines for reference -> their line styles.
    """
    curves = {str(name): own for name, own in rows.groupby("series", sort=False)}
    named = sorted(curves.keys() - lines.keys(), key=lambda name: (name.count(" "), name))
    for name, own in curves.items():
        style: Style = {"color": rcParams["grid.color"], "linewidth": 0.9, "zorder": 1}
        at = named.index(name) if name in named else 0
        if name in lines:
            style = {"color": rcParams["text.color"], "linestyle": lines[name], "label": name}
        elif at < MOST_NAMED:
            style = {"marker": _MARKERS[at % len(_MARKERS)], "linewidth": 1.4, "zorder": 3}
            style |= {"color": f"C{at % NUM_COLOURS}", "label": shortened(name, LONGEST_NAME)}
        panel.plot(own[x], own[y], markersize=5, **style)


def curve_figure(
    rows: pd.DataFrame,
    x: tuple[str, str],
    panels: Mapping[str, tuple[str, str]],
    lines: Mapping[str, str] = {},
) -> Figure:
    """Draw the same series in several panels.

    Args:
        rows: The points; see `draw_series`.
        x: Column of the x values, and the label of the axis.
        panels: Column of the y values of each panel -> its title and the label of the axis.
        lines: See `draw_series`.
    """
    figure, axes = new_figure((5.7 * len(panels), 5.2), columns=len(panels))
    for panel, (column, (title, y_label)) in zip(axes, panels.items(), strict=True):
        draw_series(panel, rows, x[0], column, lines)
        label(panel, title, x[1], y_label)
    legend(figure, axes[:1], **BELOW)
    return figure


def bar_figure(table: pd.DataFrame, texts: pd.DataFrame, x_label: str, **style: Any) -> Figure:
    """Draw horizontal bars, one group per row and one colour per column, the first row on top.

    Args:
        table: Lengths of the bars.
        texts: Texts behind the bars of some of its columns.
        x_label: Label of the axis.
        style: Keyword arguments of `DataFrame.plot.barh`.
    """
    stacked = style.get("stacked", False)
    figure, (panel,) = new_figure((10.4, 1.5 + (0.31 if stacked else 0.78) * len(table)))
    plot: Any = table.plot
    plot.barh(ax=panel, legend=False, **style)
    for name, bars in zip(table, panel.containers, strict=True):
        if name in texts:
            labels = texts[name].tolist()
            panel.bar_label(cast(BarContainer, bars), labels, padding=3, fontsize=8.5)
    ends = (table.sum(axis=1) if stacked else table).to_numpy()
    panel.set_xlim(min(0, 1.1 * np.nanmin(ends)), 1.1 * max(1e-3, np.nanmax(ends)))
    panel.invert_yaxis()
    panel.set_yticks(range(len(table)), [shortened(str(one), LONGEST_NAME) for one in table.index])
    panel.axvline(0, color=rcParams["text.color"], linewidth=0.8)
    label(panel, x=x_label, grid="x")
    legend(figure, [panel])
    return figure
