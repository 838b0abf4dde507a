"""Maps over the token grid, marks on them, and frames of a clip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jobs.report.theme import Theme

# Names of the signals as the publication spells them.
SIGNAL_NAMES = {"saliency": "p-attn", "attention": "attn"}


def heat_map(
    figure: Figure,
    panel: Axes,
    values: npt.ArrayLike,
    theme: Theme,
    *,
    label: str,
    limits: tuple[float, float] | None = None,
    colours: str = "viridis",
) -> None:
    """Draw (H, W) values, row 0 on top, with a scale beside them.

    Args:
        figure: Of the panel.
        panel: Where to draw.
        values: (H, W).
        theme: Colours of the text.
        label: What the scale shows.
        limits: Ends of the scale; `None` for those of the values.
        colours: Name of a colour map.
    """
    low, high = limits or (None, None)
    image = panel.imshow(
        np.asarray(values), cmap=colours, vmin=low, vmax=high, interpolation="nearest"
    )
    bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.02)
    bar.set_label(label, color=theme.foreground)
    bar.ax.tick_params(colors=theme.foreground, length=0)
    bar.outline.set_visible(False)
    without_frame(panel)
    panel.set_xlabel("column")
    panel.set_ylabel("row")


def mark(panel: Axes, positions: Sequence[int], width: int) -> None:
    """Write the numbers 1, 2, ... on positions of a map, readable on every colour."""
    for number, position in enumerate(positions, start=1):
        panel.text(
            position % width,
            position // width,
            str(number),
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold",
            color="#ffffff",
            bbox={"boxstyle": "circle,pad=0.18", "facecolor": "#b3261e", "edgecolor": "#ffffff"},
        )


def without_frame(panel: Axes) -> None:
    """Take the lines around a panel away."""
    for spine in panel.spines.values():
        spine.set_visible(False)


def titled(panel: Axes, text: str, theme: Theme) -> None:
    """Write the title of a panel."""
    panel.set_title(text, loc="left", fontweight="bold", fontsize=10.5, color=theme.foreground)


def legend(panel: Axes, theme: Theme, **options: Any) -> None:
    """A legend inside a panel."""
    panel.legend(frameon=False, labelcolor=theme.foreground, fontsize=9, **options)


def plain_log(axis: Axis) -> None:
    """Write 0.5, 1, 2 on a logarithmic axis: figures show no formulas."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)
