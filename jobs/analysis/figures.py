"""Common parts of the analyses' figures: maps over the token grid, curves, labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jobs.report.theme import Theme

# Names of the signals as the publication spells them.
SIGNAL_NAMES = {"saliency": "p-attn", "attention": "attn"}
# Number of series with a colour and a legend entry, fewest options first; others are thin and grey.
MOST_NAMED = 16
_MARKERS = "osD^vP*Xph<>"

Points = Sequence[tuple[float, float]]


def label(
    panel: Axes,
    theme: Theme,
    title: str = "",
    x: str = "",
    y: str = "",
    grid: Literal["both", "x", "y"] = "both",
) -> None:
    """Set the title, the axis labels and the grid of a panel."""
    panel.set_title(title, loc="left", fontweight="bold", fontsize=10.5, color=theme.foreground)
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
        scale: Label of the colour bar.
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
    without_frame(panel)
    panel.set_title(title, loc="left", fontweight="bold", fontsize=10.5, color=theme.foreground)
    panel.set_xlabel("column")
    panel.set_ylabel("row")


def mark(panel: Axes, positions: Sequence[int], width: int) -> None:
    """Number positions of a map from 1 on, readable on every colour."""
    box = {"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"}
    style: dict[str, Any] = {"fontsize": 8.5, "fontweight": "bold", "color": "#ffffff", "bbox": box}
    for number, position in enumerate(positions, start=1):
        row, column = divmod(position, width)
        panel.text(column, row, str(number), ha="center", va="center", **style)


def without_frame(panel: Axes) -> None:
    """Remove the lines around a panel."""
    for spine in panel.spines.values():
        spine.set_visible(False)


def legend(panel: Axes, theme: Theme, **options: Any) -> None:
    """Draw a legend inside a panel."""
    panel.legend(frameon=False, labelcolor=theme.foreground, fontsize=9, **options)


def legend_below(figure: Figure, panel: Axes, theme: Theme, columns: int = 4) -> None:
    """Draw one legend under all panels."""
    figure.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=theme.foreground,
        fontsize=8.5,
    )


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers instead of powers of 10."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def styles(names: Sequence[str], theme: Theme) -> dict[str, tuple[str, str]]:
    """(colour, marker) per named series."""
    named = sorted(names, key=lambda name: name.count(" "))[:MOST_NAMED]
    return {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(named)
    }


def shortened(name: str, longest: int = 44) -> str:
    """Shorten a long name by cutting out its middle."""
    if len(name) <= longest:
        return name
    return f"{name[: longest // 2]}…{name[-(longest // 2 - 1) :]}"


def draw_series(panel: Axes, series: Mapping[str, Points], theme: Theme) -> None:
    """Draw one curve per series, given as (x, y) points sorted by x."""
    known = styles(list(series), theme)
    for name, points in series.items():
        colour, marker = known.get(name, (theme.grid, ""))
        panel.plot(
            *np.array(points).reshape(-1, 2).T,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.4 if name in known else 0.9,
            zorder=3 if name in known else 1,
            label=shortened(name) if name in known else None,
        )
