"""Figures of differences: by group of the questions, and over several trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jobs.report.formatting import shortened
from jobs.report.theme import Theme, new_figure
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.comparisons import Family, GroupDifference
from jobs.results.replicates import ReplicatedCell
from tango_core.compressors import CONTROLS
from tango_core.metrics import Comparison as ScoreDifference

# Maximum number of rows of a panel; the values with most questions are drawn.
MOST_VALUES = 40
MOST_COLUMNS = 4
_LONGEST_VALUE, _LONGEST_TITLE = 28, 30
_WIDTH = 11.0
# Margin at both ends of the scale, as a share of its range.
_MARGIN = 0.06

Line = Literal["-", ":", ""]
Colours = Mapping[float, str]
Series = Callable[[CellSummary], str]


class _Mark(NamedTuple):
    """A difference with its position and style in the plot."""

    paired: ScoreDifference
    at: float
    colour: str
    filled: bool


def caption_of(family: Family) -> str:
    """Caption with the number of comparisons and how many survive Holm's correction."""
    number, surviving = len(family.members), family.num_surviving
    drawn, there = len(values_of(family)), len({member.value for member in family.members})
    cut = f"; the {drawn} values with most questions of {there}" if drawn < there else ""
    comparisons = "1 comparison" if number == 1 else f"{number:,} comparisons"
    survive = "1 survives" if surviving == 1 else f"{surviving:,} survive"
    return f"{family.group}: {comparisons}, {survive} Holm's correction (filled){cut}"


def values_of(family: Family) -> dict[str, int]:
    """The drawn values in alphabetical order, with their numbers of questions."""
    counts: dict[str, int] = {}
    for member in family.members:
        counts[member.value] = max(counts.get(member.value, 0), member.paired.num_questions)
    most = sorted(counts, key=lambda value: -counts[value])[:MOST_VALUES]
    return {value: counts[value] for value in sorted(most)}


def forest_plot(family: Family, series: Series, theme: Theme) -> Figure:
    """Paired differences with 95 % intervals, one colour per retention.

    Filled points survive Holm's correction over the family; dotted intervals are based on too few
    clips and are conservative bounds. Diamonds are the differences over all questions, which are
    not part of the family. All panels have the same scale, and intervals may extend beyond it.

    Args:
        family: At least one difference.
        series: Returns the name of a cell's series, which is the title of its panel.
        theme: Colours.
    """
    values = values_of(family)
    panels_of: dict[str, list[GroupDifference]] = {}
    for member in family.members:
        panels_of.setdefault(series(member.cell), []).append(member)
    retentions = sorted({member.cell.retention_requested for member in family.members})
    colours = _colours(retentions, theme)
    columns = min(MOST_COLUMNS, len(panels_of))
    rows = math.ceil(len(panels_of) / columns)
    band = max(0.25, 0.09 * len(retentions) + 0.1)  # inches per value
    height = 0.8 + rows * (0.65 + band * (len(values) + 1))
    width = _WIDTH if columns > 2 else 7.6
    figure, panels = new_figure((width, height), theme, rows=rows, columns=columns)
    scale = _scale(family)
    for at, (panel, (name, members)) in enumerate(zip(panels, panels_of.items(), strict=False)):
        _panel_forest(panel, members, list(values), retentions, colours, theme)
        title = shortened(name, _LONGEST_TITLE if columns > 2 else 2 * _LONGEST_TITLE)
        panel.set_title(title, loc="left", fontweight="bold", color=theme.foreground, fontsize=10)
        panel.set_xlim(*scale)
        names = [f"{shortened(value, _LONGEST_VALUE)}  {n:,}" for value, n in values.items()]
        panel.set_yticks(range(len(values) + 1), [*names, "all"] if at % columns == 0 else [])
        if at + columns >= len(panels_of):
            title = metric_title(members[0].cell, family.metric)
            panel.set_xlabel(f"{title}: difference in points")
    for panel in panels[len(panels_of) :]:
        panel.set_visible(False)
    _legend(figure, colours, theme)
    return figure


def _colours(retentions: Sequence[float], theme: Theme) -> Colours:
    """One colour per retention, brighter for more tokens."""
    if len(retentions) == 1:
        return {retentions[0]: theme.series[0]}
    ends = (0.05, 0.8) if theme.name == "light" else (0.4, 1.0)
    shades = colormaps["viridis"](np.linspace(*ends, len(retentions)))
    return dict(zip(retentions, map(to_hex, shades), strict=True))


def _scale(family: Family) -> tuple[float, float]:
    """Ends of the scale in points; it includes 0, all differences and all exact intervals."""
    ends = [0.0]
    for member in family.members:
        paired = member.paired
        sure = () if paired.too_few_clips else (paired.low, paired.high)
        ends += [100 * one for one in (paired.difference, *sure)]
    margin = max(1.0, _MARGIN * (max(ends) - min(ends)))
    return min(ends) - margin, max(ends) + margin


def _panel_forest(
    panel: Axes,
    members: Sequence[GroupDifference],
    values: Sequence[str],
    retentions: Sequence[float],
    colours: Colours,
    theme: Theme,
) -> None:
    """Draw the panel of one series."""
    rows = {value: row for row, value in enumerate(values)}
    step = 0.74 / max(1, len(retentions))
    shifts = {
        retention: (at - (len(retentions) - 1) / 2) * step
        for at, retention in enumerate(retentions)
    }
    for row in range(1, len(values), 2):
        panel.axhspan(row - 0.5, row + 0.5, color=theme.foreground, alpha=0.05, linewidth=0)
    panel.axhline(len(values) - 0.5, color=theme.grid, linewidth=0.9)
    panel.axvline(0, color=theme.foreground, linewidth=0.9, dashes=(4, 3))
    cells = {member.cell.retention_requested: member.cell for member in members}
    differences = [
        _Mark(m.paired, rows[m.value] + shifts[share], colours[share], m.survives)
        for m in members
        if m.value in rows
        for share in (m.cell.retention_requested,)
    ]
    whole = [
        _Mark(cell.versus_full.paired, len(values) + shifts[share], colours[share], True)
        for share, cell in cells.items()
        if cell.versus_full and cell.versus_full.paired
    ]
    _draw(panel, differences, "o", theme)
    _draw(panel, whole, "D", theme)
    panel.set_ylim(len(values) + 0.5, -0.5)
    panel.grid(axis="x", color=theme.grid, linewidth=0.6)


def _draw(panel: Axes, marks: Sequence[_Mark], shape: str, theme: Theme) -> None:
    """Draw all intervals and points in a few calls; single calls take ten times as long."""
    for line in ("-", ":"):
        own = [mark for mark in marks if mark.paired.too_few_clips == (line == ":")]
        panel.hlines(
            [mark.at for mark in own],
            [100 * mark.paired.low for mark in own],
            [100 * mark.paired.high for mark in own],
            colors=[mark.colour for mark in own],
            linewidths=1.3,
            linestyles=line,
        )
    panel.scatter(
        [100 * mark.paired.difference for mark in marks],
        [mark.at for mark in marks],
        s=18,
        marker=shape,
        facecolors=[mark.colour if mark.filled else theme.background for mark in marks],
        edgecolors=[mark.colour for mark in marks],
        linewidths=1.1,
        zorder=3,
    )


def _legend(figure: Figure, colours: Colours, theme: Theme) -> None:
    """Draw the legend of colours, filled points, dotted intervals and diamonds."""

    def handle(label: str, marker: str, colour: str, face: str, line: Line) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle=line,
            marker=marker,
            color=colour,
            markerfacecolor=face,
            markersize=5,
            label=label,
        )

    ink = theme.foreground
    handles = [
        *(handle(f"{100 * share:g} %", "o", one, one, "-") for share, one in colours.items()),
        handle("p < 0.05 (Holm)", "o", ink, ink, ""),
        handle("not", "o", ink, theme.background, ""),
        handle("too few clips", "", ink, ink, ":"),
        handle("all questions", "D", ink, ink, ""),
    ]
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        labelcolor=theme.foreground,
        fontsize=9,
        columnspacing=1.3,
        handletextpad=0.5,
    )


# Inches per method and per retention.
_ROW, _COLUMN = 0.24, 2.3
_LONGEST_NAME = 34


def replicates_figure(found: Sequence[ReplicatedCell], theme: Theme) -> Figure:
    """One column per retention, one line per method, a row of columns per benchmark.

    Methods are sorted by their mean over their retentions; controls are hollow. A retention with
    controls only has no column. The dashed line is the mean of the unpruned baseline `full`.

    Args:
        found: Cells of several trainings; at least one is not `full`.
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
    """Names of the methods, best last, so that it is on top in the plot."""
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
    """Draw the panel of one retention of one benchmark."""
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
