"""Common figures of the analyses: maps over the token grid, curves, bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jobs.report.formatting import shortened
from jobs.report.theme import Theme, handles_of, new_figure
from jobs.report.theme import legend as outer_legend
from jobs.report.theme import title as panel_title

# Names of the signals as the publication spells them.
SIGNAL_NAMES = {"saliency": "p-attn", "attention": "attn"}
# Number of series with a colour and a legend entry, fewest options first; others are thin and grey.
MOST_NAMED = 16
LONGEST_NAME = 50
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


class Map(NamedTuple):
    """A map over the token grid.

    Attributes:
        title: Title above the map.
        values: (H, W).
        marked: Positions that are numbered from 1 on.
        limits: Ends of the colour bar; `None` for those of the values.
        colours: Name of a colour map.
    """

    title: str
    values: npt.NDArray[Any]
    marked: Sequence[int] = ()
    limits: tuple[float, float] | tuple[None, None] = (None, None)
    colours: str = "viridis"


def map_figure(rows: Sequence[Sequence[Map]], scale: str, theme: Theme) -> Figure:
    """Draw maps with row 0 on top, and a colour bar with the label `scale` each."""
    height, width = rows[0][0].values.shape
    size = 4.6 * len(rows[0]), len(rows) * (3.6 * max(0.6, min(1.6, height / width)) + 0.5)
    figure, panels = new_figure(size, theme, len(rows), len(rows[0]))
    box = {"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"}
    style: dict[str, Any] = {"fontsize": 8.5, "fontweight": "bold", "color": "#ffffff", "bbox": box}
    for panel, one in zip(panels, (one for row in rows for one in row), strict=True):
        low, high = one.limits
        image = panel.imshow(
            one.values, cmap=one.colours, vmin=low, vmax=high, interpolation="nearest"
        )
        bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02)
        bar.set_label(scale, color=theme.foreground)
        bar.ax.tick_params(colors=theme.foreground, length=0)
        bar.outline.set_visible(False)
        panel.spines[:].set_visible(False)
        panel_title(panel, one.title, theme, fontsize=10.5)
        for number, position in enumerate(one.marked, start=1):
            row, column = divmod(position, width)
            panel.text(column, row, str(number), ha="center", va="center", **style)
    return figure


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


def draw_series(
    panel: Axes, rows: pd.DataFrame, x: str, y: str, theme: Theme, lines: Mapping[str, str] = {}
) -> None:
    """Draw one curve per value of the column `series`, through its rows in their order.

    Args:
        panel: Panel to draw in.
        rows: The points.
        x: Column of the x values.
        y: Column of the y values.
        theme: Colours.
        lines: Series that are lines for reference -> their line styles.
    """
    curves = {str(name): own for name, own in rows.groupby("series", sort=False)}
    named = sorted(curves.keys() - lines.keys(), key=lambda name: (name.count(" "), name))
    for name, own in curves.items():
        style: dict[str, Any] = {"color": theme.grid, "linewidth": 0.9, "zorder": 1}
        at = named.index(name) if name in named else 0
        if name in lines:
            style = {"color": theme.foreground, "linestyle": lines[name], "label": name}
        elif at < MOST_NAMED:
            style = {
                "color": theme.series[at % len(theme.series)],
                "marker": _MARKERS[at % len(_MARKERS)],
                "label": shortened(name, LONGEST_NAME),
                "linewidth": 1.4,
                "zorder": 3,
            }
        panel.plot(own[x], own[y], markersize=5, **style)


def curve_figure(
    rows: pd.DataFrame,
    x: tuple[str, str],
    panels: Mapping[str, tuple[str, str]],
    lines: Mapping[str, str],
    theme: Theme,
) -> Figure:
    """Draw the same series in several panels.

    Args:
        rows: The points; see `draw_series`.
        x: Column of the x values, and the label of the axis.
        panels: Column of the y values of each panel -> its title and the label of the axis.
        lines: See `draw_series`.
        theme: Colours.
    """
    figure, axes = new_figure((5.7 * len(panels), 5.2), theme, columns=len(panels))
    for panel, (column, (title, y_label)) in zip(axes, panels.items(), strict=True):
        draw_series(panel, rows, x[0], column, theme, lines)
        label(panel, theme, title, x[1], y_label)
    legend_below(figure, axes[0], theme)
    return figure


def bar_figure(
    table: pd.DataFrame, texts: pd.DataFrame, x_label: str, theme: Theme, **style: Any
) -> Figure:
    """Draw horizontal bars, one group per row and one colour per column, the first row on top.

    Args:
        table: Lengths of the bars.
        texts: Texts behind the bars of some of its columns.
        x_label: Label of the axis.
        theme: Colours.
        style: Keyword arguments of `DataFrame.plot.barh`.
    """
    stacked = style.get("stacked", False)
    figure, (panel,) = new_figure((10.4, 1.5 + (0.31 if stacked else 0.78) * len(table)), theme)
    plot: Any = table.plot
    plot.barh(ax=panel, legend=False, color=list(theme.series), **style)
    for name, bars in zip(table, panel.containers, strict=True):
        if name in texts:
            behind: dict[str, Any] = {"padding": 3, "fontsize": 8.5, "color": theme.foreground}
            panel.bar_label(cast(BarContainer, bars), texts[name].tolist(), **behind)
    ends = (table.sum(axis=1) if stacked else table).to_numpy()
    panel.set_xlim(min(0, 1.1 * np.nanmin(ends)), 1.1 * max(1e-3, np.nanmax(ends)))
    panel.invert_yaxis()
    panel.set_yticks(range(len(table)), [shortened(str(one), LONGEST_NAME) for one in table.index])
    panel.set_ylabel("")
    panel.axvline(0, color=theme.foreground, linewidth=0.8)
    label(panel, theme, x=x_label, grid="x")
    outer_legend(figure, handles_of([panel]), theme)
    return figure
