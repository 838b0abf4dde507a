"""Curves of many methods over the share of tokens kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jobs.report.theme import Theme

# Series with a colour and a name, those with the fewest options first; more are thin and grey.
MOST_NAMED = 16
_MARKERS = "osD^vP*Xph<>"

Points = Sequence[tuple[float, float]]


def styles(names: Sequence[str], theme: Theme) -> dict[str, tuple[str, str]]:
    """Series -> (colour, marker), of the named ones."""
    named = sorted(names, key=lambda name: name.count(" "))[:MOST_NAMED]
    return {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(named)
    }


def shortened(name: str, longest: int = 44) -> str:
    """A name without its middle, if it is too long for a figure."""
    if len(name) <= longest:
        return name
    return f"{name[: longest // 2]}…{name[-(longest // 2 - 1) :]}"


def draw_series(
    panel: Axes, series: Mapping[str, Points], theme: Theme, *, dashed: bool = False
) -> None:
    """One curve per series.

    Args:
        panel: Where to draw.
        series: Name -> (x, y) by x.
        theme: Colours.
        dashed: Draw broken lines without names, as a second curve of the same series.
    """
    known = styles(list(series), theme)
    for name, points in series.items():
        colour, marker = known.get(name, (theme.grid, ""))
        panel.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=colour,
            marker="" if dashed else marker,
            markersize=5,
            linewidth=1.4 if name in known else 0.9,
            dashes=(4, 2) if dashed else (None, None),
            zorder=3 if name in known else 1,
            label=shortened(name) if name in known and not dashed else None,
        )
    panel.grid(color=theme.grid, linewidth=0.6, alpha=0.8)


def legend_below(figure: Figure, panel: Axes, theme: Theme, columns: int = 4) -> None:
    """One legend under all panels."""
    handles, names = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        labelcolor=theme.foreground,
        fontsize=8.5,
    )
