"""Figures of differences: by group of the questions, and over several trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from jobs.report.formatting import shortened
from jobs.report.theme import Style, Theme, legend, new_figure, title
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

Series = Callable[[CellSummary], str]
# Retention -> colour, and shift within a row.
_Styles = Mapping[float, tuple[str, float]]
# Row and retention of a difference in the plot, and whether its point is filled.
_Mark = tuple[int, float, ScoreDifference, bool]


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
    styles = _styles(sorted({member.cell.retention_requested for member in family.members}), theme)
    columns = min(MOST_COLUMNS, len(panels_of))
    rows = math.ceil(len(panels_of) / columns)
    band = max(0.25, 0.09 * len(styles) + 0.1)  # inches per value
    size = (_WIDTH if columns > 2 else 7.6, 0.8 + rows * (0.65 + band * (len(values) + 1)))
    figure, panels = new_figure(size, theme, rows=rows, columns=columns, used=len(panels_of))
    # The scale includes 0, all differences, and all intervals but those of too few clips.
    paired = [member.paired for member in family.members]
    ends = [0.0, *(100 * one.difference for one in paired)]
    ends += [100 * end for one in paired if not one.too_few_clips for end in (one.low, one.high)]
    margin = max(1.0, _MARGIN * (max(ends) - min(ends)))
    longest = _LONGEST_TITLE if columns > 2 else 2 * _LONGEST_TITLE
    names = [f"{shortened(value, _LONGEST_VALUE)}  {n:,}" for value, n in values.items()]
    for at, (panel, (name, members)) in enumerate(zip(panels, panels_of.items(), strict=True)):
        _panel_forest(panel, members, list(values), styles, theme)
        title(panel, shortened(name, longest), theme, fontsize=10)
        panel.set_xlim(min(ends) - margin, max(ends) + margin)
        panel.set_yticks(range(len(values) + 1), [*names, "all"] if at % columns == 0 else [])
        if at + columns >= len(panels_of):
            headline = metric_title(members[0].cell, family.metric)
            panel.set_xlabel(f"{headline}: difference in points")
    ink: Style = {"color": theme.foreground, "linestyle": ""}
    handles = {
        **{
            f"{100 * share:g} %": Style(marker="o", color=own) for share, (own, _) in styles.items()
        },
        "p < 0.05 (Holm)": {**ink, "marker": "o"},
        "not": {**ink, "marker": "o", "markerfacecolor": theme.background},
        "too few clips": {**ink, "linestyle": ":"},
        "all questions": {**ink, "marker": "D"},
    }
    lines = {text: Line2D([], [], **{"markersize": 5, **own}) for text, own in handles.items()}
    legend(figure, lines, theme, fontsize=9, columnspacing=1.3, handletextpad=0.5)
    return figure


def _styles(retentions: Sequence[float], theme: Theme) -> _Styles:
    """One colour per retention, brighter for more tokens, and its shift within a row."""
    number = len(retentions)
    ends = (0.05, 0.8) if theme.name == "light" else (0.4, 1.0)
    shades = map(to_hex, colormaps["viridis"](np.linspace(*ends, number)))
    colours = shades if number > 1 else theme.series[:1]
    shifts = (np.arange(number) - (number - 1) / 2) * 0.74 / number
    return dict(zip(retentions, zip(colours, shifts.tolist(), strict=True), strict=True))


def _panel_forest(
    panel: Axes,
    members: Sequence[GroupDifference],
    values: Sequence[str],
    styles: _Styles,
    theme: Theme,
) -> None:
    """Draw the panel of one series."""
    for row in range(1, len(values), 2):
        panel.axhspan(row - 0.5, row + 0.5, color=theme.foreground, alpha=0.05, linewidth=0)
    panel.axhline(len(values) - 0.5, color=theme.grid, linewidth=0.9)
    panel.axvline(0, color=theme.foreground, linewidth=0.9, dashes=(4, 3))
    differences: list[_Mark] = []
    whole: dict[float, _Mark] = {}
    for member in members:
        share, versus = member.cell.retention_requested, member.cell.versus_full
        if member.value in values:
            row = values.index(member.value)
            differences.append((row, share, member.paired, member.survives))
        if versus and versus.paired:
            whole[share] = len(values), share, versus.paired, True
    _draw(panel, differences, "o", styles, theme)
    _draw(panel, list(whole.values()), "D", styles, theme)
    panel.set_ylim(len(values) + 0.5, -0.5)
    panel.grid(axis="x", color=theme.grid, linewidth=0.6)


def _draw(panel: Axes, marks: Sequence[_Mark], shape: str, styles: _Styles, theme: Theme) -> None:
    """Draw all intervals and points in a few calls; single calls take ten times as long."""
    colours = [styles[share][0] for _, share, _, _ in marks]
    at = [row + styles[share][1] for row, share, _, _ in marks]
    low, high = ([100 * getattr(one[2], end) for one in marks] for end in ("low", "high"))
    few: Any = [":" if paired.too_few_clips else "-" for _, _, paired, _ in marks]
    panel.hlines(at, low, high, colors=colours, linewidths=1.3, linestyles=few)
    panel.scatter(
        [100 * paired.difference for _, _, paired, _ in marks],
        at,
        s=18,
        marker=shape,
        facecolors=[
            colour if filled else theme.background
            for colour, (*_, filled) in zip(colours, marks, strict=True)
        ],
        edgecolors=colours,
        linewidths=1.1,
        zorder=3,
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
    rows: dict[str, dict[str, list[float]]] = {}  # benchmark -> series -> means
    for one in pruned:
        if one.cell.retention_requested in shares:
            names = rows.setdefault(one.cell.benchmark, {})
            names.setdefault(one.cell.series, []).append(one.mean)
    heights = [len(names) for names in rows.values()]
    size = (2.6 + _COLUMN * len(shares), sum(1.1 + _ROW * height for height in heights))
    figure, panels = new_figure(
        size, theme, rows=len(rows), columns=len(shares), height_ratios=heights
    )
    for row, (benchmark, means) in enumerate(rows.items()):
        own = [one for one in found if one.cell.benchmark == benchmark]
        # The best one last, so that it is on top in the plot.
        order = sorted(means, key=lambda name: fmean(means[name]))
        ticks = [shortened(name, _LONGEST_NAME) for name in order]
        for column, share in enumerate(shares):
            panel = panels[row * len(shares) + column]
            for one in own:
                if one.cell.is_baseline:
                    line: Style = {"color": theme.foreground, "linestyle": "--", "linewidth": 0.9}
                    panel.axvline(100 * one.mean, **line)
                elif one.cell.retention_requested == share:
                    at, values = order.index(one.cell.series), [100 * v for v in one.values]
                    control = one.cell.method in CONTROLS
                    colour = theme.series[7 if control else 0]
                    style: Style = {"markersize": 4, "linestyle": "none", "color": colour}
                    style["markerfacecolor"] = "none" if control else colour
                    panel.hlines(at, min(values), max(values), color=colour, alpha=0.6)
                    panel.plot(values, [at] * len(values), "o", **style)
            panel.set_ylim(-0.7, len(order) - 0.3)
            panel.grid(axis="y", color=theme.grid, linewidth=0.5)
            panel.xaxis.set_major_locator(MaxNLocator(4))
            panel.set_xlabel(f"{headline_title([one.cell for one in own])} (%)")
            panel.set_yticks(range(len(order)), [] if column else ticks, fontsize=8)
            text = f"{100 * share:g} %" if column else f"{benchmark}, {100 * share:g} %"
            title(panel, text, theme, fontsize=10)
    return figure
