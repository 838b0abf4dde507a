"""Every method at every retention: a dot per training, a line from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jobs.report.formatting import shortened
from jobs.report.theme import Theme, new_figure
from jobs.results.headlines import headline_title
from jobs.results.replicates import ReplicatedCell
from tango_core.compressors import CONTROLS

# Inches per method and per retention; longest name of a method.
_ROW, _COLUMN = 0.24, 2.3
_LONGEST_NAME = 34


def replicates_figure(found: Sequence[ReplicatedCell], theme: Theme) -> Figure:
    """One column per retention, one line per method, a row of columns per benchmark.

    Methods stand in the order of their mean over the retentions they were asked at; controls are
    hollow. A retention at which controls alone were asked has no column. The dashed line is the
    mean of all tokens.

    Args:
        found: Cells of several trainings, not all of them those of all tokens.
        theme: Colours.
    """
    pruned = [one for one in found if not one.cell.is_baseline]
    methods = [one for one in pruned if one.cell.method not in CONTROLS] or pruned
    shares = sorted({one.cell.retention_requested for one in methods})
    pruned = [one for one in pruned if one.cell.retention_requested in shares]
    benchmarks = list(dict.fromkeys(one.cell.benchmark for one in pruned))
    heights = [len(_series(pruned, name)) for name in benchmarks]
    size = (2.6 + _COLUMN * len(shares), sum(1.1 + _ROW * height for height in heights))
    figure, panels = new_figure(
        size, theme, rows=len(benchmarks), columns=len(shares), height_ratios=heights
    )
    for row, benchmark in enumerate(benchmarks):
        own = [one for one in found if one.cell.benchmark == benchmark]
        names = _series(pruned, benchmark)
        for column, share in enumerate(shares):
            panel = panels[row * len(shares) + column]
            _panel(panel, own, names, share, theme)
            panel.set_xlabel(f"{headline_title([one.cell for one in own])} (%)")
            panel.set_yticks(range(len(names)))
            panel.set_yticklabels(
                [] if column else [shortened(name, _LONGEST_NAME) for name in names], fontsize=8
            )
            title = f"{100 * share:g} %" if column else f"{benchmark}, {100 * share:g} %"
            panel.set_title(
                title, loc="left", fontweight="bold", color=theme.foreground, fontsize=10
            )
    return figure


def _series(cells: Sequence[ReplicatedCell], benchmark: str) -> list[str]:
    """Names of the methods, the best one last, which a plot shows on top."""
    by_name: dict[str, list[float]] = {}
    for one in cells:
        if one.cell.benchmark == benchmark:
            by_name.setdefault(one.cell.series, []).append(one.mean)
    return sorted(by_name, key=lambda name: sum(by_name[name]) / len(by_name[name]))


def _panel(
    panel: Axes,
    cells: Sequence[ReplicatedCell],
    names: Sequence[str],
    share: float,
    theme: Theme,
) -> None:
    """One retention of one benchmark."""
    for one in cells:
        if one.cell.is_baseline:
            panel.axvline(100 * one.mean, color=theme.foreground, linestyle="--", linewidth=0.9)
        elif one.cell.retention_requested == share:
            at = names.index(one.cell.series)
            values = [100 * value for value in one.values]
            control = one.cell.method in CONTROLS
            colour = theme.series[7] if control else theme.series[0]
            panel.hlines(at, min(values), max(values), color=colour, linewidth=1.2, alpha=0.6)
            panel.plot(
                values,
                [at] * len(values),
                "o",
                color=colour,
                markerfacecolor="none" if control else colour,
                markersize=4,
                linestyle="none",
            )
    panel.set_ylim(-0.7, len(names) - 0.3)
    panel.grid(axis="y", color=theme.grid, linewidth=0.5)
    panel.xaxis.set_major_locator(MaxNLocator(4))
