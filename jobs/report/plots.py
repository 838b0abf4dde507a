"""The plots of a report, with their titles and captions.

All are drawn without a display and without matplotlib's global state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from jobs.report.difference_plots import Series, caption_of, forest_plot
from jobs.report.formatting import milliseconds, shortened
from jobs.report.tables.cells import labels, tables_of_cells
from jobs.report.theme import (
    LIGHT,
    Style,
    Theme,
    handles_of,
    legend,
    legend_above,
    new_figure,
    note,
    png,
    title,
)
from jobs.results.cell_summary import CellSummary, headline_title
from jobs.results.comparisons import families_of
from jobs.results.replies import are_ranked
from tango_core.metrics import ACCURACY, Estimate

_LETTERS_PER_INCH = 11.5
# A cell and its headline.
_Scored = tuple[CellSummary, Estimate]


def score_plot(
    cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> Figure | None:
    """Headline metrics over the requested retention with 95 % intervals, one panel per benchmark.

    Args:
        cells: Cells of one run or of several.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.

    Returns:
        The figure; `None` if no cell has a headline metric.
    """
    by_benchmark: dict[str, list[_Scored]] = {}
    for cell in cells:
        if cell.headline is not None:
            by_benchmark.setdefault(cell.benchmark, []).append((cell, cell.headline))
    if not by_benchmark:
        return None
    columns = min(2, len(by_benchmark))
    rows = -(-len(by_benchmark) // columns)
    width = 7.6 if columns == 1 else 11.0
    longest = max(map(len, styles), default=0)
    fitting = max(1, min(6, int(width * _LETTERS_PER_INCH / (longest + 8))))
    height = 0.3 + 3.6 * rows + 0.22 * -(-(1 + len(styles)) // fitting)
    figure, panels = new_figure((width, height), theme, rows, columns, used=len(by_benchmark))
    for panel, (benchmark, own) in zip(panels, by_benchmark.items(), strict=True):
        _panel_score(panel, own, series, styles, theme)
        title(panel, benchmark, theme)
    if handles := handles_of(panels):
        most = min(fitting, len(handles))
        legend(figure, handles, theme, loc="outside lower center", ncols=most)
    return figure


def _panel_score(
    panel: Axes, cells: Sequence[_Scored], series: Series, styles: Styles, theme: Theme
) -> None:
    """Draw one benchmark: the baseline `full` as a band, the other cells as points."""
    dashed: Style = {"color": theme.foreground, "linewidth": 1.2, "dashes": (5, 3), "label": "full"}
    members: dict[str, list[_Scored]] = {}
    for cell, score in cells:
        if cell.is_baseline:
            ends = 100 * score.low, 100 * score.high
            panel.axhspan(*ends, color=theme.foreground, alpha=0.07, linewidth=0)
            panel.axhline(100 * score.value, **dashed)
        else:
            members.setdefault(series(cell), []).append((cell, score))
    shares = {cell.retention_requested for own in members.values() for cell, _ in own}
    retentions = sorted(shares)
    step = min(0.16, 0.66 / max(1, len(members)))
    point: Style = {"markersize": 7, "markeredgecolor": theme.background, "markeredgewidth": 0.7}
    for index, (name, found) in enumerate(members.items()):
        colour, marker = styles[name]
        own = sorted(found, key=lambda pair: pair[0].retention_requested)
        shift = (index - (len(members) - 1) / 2) * step
        x = [retentions.index(cell.retention_requested) + shift for cell, _ in own]
        y = [100 * score.value for _, score in own]
        below = [100 * (score.value - score.low) for _, score in own]
        above = [100 * (score.high - score.value) for _, score in own]
        panel.plot(x, y, color=colour, linewidth=1, alpha=0.45)
        line: Style = {
            "color": colour,
            "fmt": marker,
            "elinewidth": 1.4,
            "capsize": 0,
            "label": name,
        }
        panel.errorbar(x, y, yerr=(below, above), **line, **point)
    panel.set_xticks(range(len(retentions)), [f"{100 * share:g} %" for share in retentions])
    panel.set_xlim(-0.6, max(len(retentions), 1) - 0.4)
    panel.set_xlabel("visual tokens asked for")
    panel.set_ylabel(f"{headline_title([cell for cell, _ in cells])} (%)")
    panel.grid(axis="y", color=theme.grid, linewidth=0.7)


# Stages whose time depends on the method; the vision tower processes every frame in any case.
COSTED = ("compress", "prefill")
MOST_NAMED = 14
LONGEST_FRONT_NAME = 32

# (colour, marker) by name of a cell's series.
Styles = Mapping[str, tuple[str, str]]
Cost = Callable[[CellSummary], float | None]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Find the points that are not dominated in cost and value.

    Args:
        points: (cost, value) pairs; lower cost and higher value are better.

    Returns:
        Indices by increasing cost; of equal points only the first.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def milliseconds_of(cell: CellSummary) -> float | None:
    """Median milliseconds of compression and prefill; `None` if none was measured."""
    known = [cell.p50(stage) for stage in COSTED]
    if known[-1] is None:
        return None
    return sum(value for value in known if value is not None)


def percent_of_tokens(cell: CellSummary) -> float | None:
    """Kept visual tokens in percent, averaged over the layers of the language model."""
    return None if cell.equivalent_retention is None else 100 * cell.equivalent_retention


COSTS: tuple[tuple[str, Cost], ...] = (
    ("compress + prefill, median ms", milliseconds_of),
    ("visual tokens, % averaged over the layers", percent_of_tokens),
)


def pareto(
    cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> Figure | None:
    """Headline metric over time and over tokens, with Pareto fronts; one row per benchmark.

    Args:
        cells: Cells of one run or of several.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.

    Returns:
        The figure; `None` if no benchmark has two cells with a cost.
    """
    scored = [cell for cell in cells if cell.headline is not None]
    rows = []
    for benchmark in dict.fromkeys(cell.benchmark for cell in scored):
        own = [cell for cell in scored if cell.benchmark == benchmark]
        points = [[(cell, value) for cell in own if (value := cost(cell))] for _, cost in COSTS]
        if max(map(len, points)) > 1:
            rows.append((benchmark, headline_title(own), points))
    if not rows:
        return None
    size = (11.0, 0.3 + 3.8 * len(rows))
    figure, panels = new_figure(size, theme, rows=len(rows), columns=len(COSTS))
    for row, (benchmark, headline, points) in enumerate(rows):
        own_panels = panels[row * len(COSTS) :]
        for panel, own_points, (label, _) in zip(own_panels, points, COSTS, strict=False):
            _panel_pareto(panel, own_points, series, styles, theme)
            panel.set_xlabel(label)
        title(own_panels[0], benchmark, theme)
        own_panels[0].set_ylabel(f"{headline} (%)")
    return figure


def _panel_pareto(
    panel: Axes,
    points: Sequence[tuple[CellSummary, float]],
    series: Series,
    styles: Styles,
    theme: Theme,
) -> None:
    """Draw points with intervals; points on the front are ringed, connected and named."""
    if not points:
        panel.set_visible(False)
        return
    values = []
    for cell, cost in points:
        score = cell.headline
        assert score is not None
        value, low, high = (100 * part for part in (score.value, score.low, score.high))
        values.append((cost, value))
        colour, marker = (theme.foreground, "s") if cell.is_baseline else styles[series(cell)]
        panel.vlines(cost, low, high, color=colour, linewidth=1, alpha=0.28)
        panel.plot(cost, value, marker, color=colour, markersize=5, markeredgewidth=0, alpha=0.9)
    front = pareto_front(values) if are_ranked(cell for cell, _ in points) else []
    places = [values[index] for index in front]
    x, y = [cost for cost, _ in places], [value for _, value in places]
    ink, step = theme.foreground, Style(drawstyle="steps-post", alpha=0.7, zorder=1)
    panel.plot(x, y, color=ink, linewidth=1.1, **step)
    panel.scatter(x, y, s=72, facecolors="none", edgecolors=ink, linewidths=1.1, zorder=3)
    # Number the points of the front, and list their names in the emptiest corner of the panel.
    shown = []
    for number, (index, at) in enumerate(zip(front, places, strict=True), 1):
        corner: Style = {"xytext": (-6, 6), "ha": "right", "va": "baseline", "fontsize": 8}
        note(panel, f"{number}", at, theme, **corner)
        shown.append(f"{number}  {shortened(points[index][0].name, LONGEST_FRONT_NAME)}")
    if len(shown) > MOST_NAMED:
        shown = [*shown[: MOST_NAMED - 1], f"and {len(shown) - MOST_NAMED + 1} more"]
    box: Style = {"facecolor": theme.background, "edgecolor": theme.grid, "alpha": 0.85}
    where: Style = {"transform": panel.transAxes, "ha": "right", "va": "bottom", "fontsize": 8}
    text = "\n".join(shown)
    panel.text(0.98, 0.04, text, multialignment="left", color=ink, bbox=box, **where)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(color=theme.grid, linewidth=0.6)


STACKED = ("vision", "compress", "prefill", "decode")
LONGEST_NAME = 44


def latency_bars(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Stacked bars of median milliseconds per stage, one bar per cell; `None` if nothing was timed.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.
    """
    timed = [cell for cell in cells if any(stage in cell.latency_ms for stage in STACKED)]
    stages = [stage for stage in STACKED if any(stage in cell.latency_ms for cell in timed)]
    colours = dict(zip(STACKED, theme.series, strict=False))

    def draw(panel: Axes, own: Sequence[CellSummary]) -> float:
        ends = [0.0] * len(own)
        style: Style = {"height": 0.68, "edgecolor": theme.background, "linewidth": 0.8}
        for stage in stages:
            widths = [cell.p50(stage) or 0.0 for cell in own]
            style |= {"color": colours[stage], "label": stage}
            panel.barh(range(len(own)), widths, left=ends, **style)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for row, (end, cell) in enumerate(zip(ends, own, strict=True)):
            cached = "" if "vision" in cell.latency_ms else "  (vision from cache)"
            note(panel, milliseconds(end) + cached, (end, row), theme)
        return max(1.0, *ends)

    label = "median milliseconds: vision and compress per clip, prefill and decode per question"
    return _bars(timed, draw, label, 1.2, theme)


def token_bars(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Requested share of tokens compared with the actual share, averaged over the layers.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        The figure; `None` if no cell prunes or none has recorded its kept tokens.
    """
    ring: Style = {"s": 62, "facecolors": "none", "edgecolors": theme.foreground, "linewidths": 1.3}

    def draw(panel: Axes, own: Sequence[CellSummary]) -> float:
        rows = range(len(own))
        asked = [100 * cell.retention_requested for cell in own]
        real = [100 * (cell.equivalent_retention or 0.0) for cell in own]
        panel.hlines(rows, asked, real, color=theme.series[1], linewidth=2.2, alpha=0.6)
        panel.scatter(asked, rows, label="asked for", **ring)
        panel.scatter(real, rows, s=26, color=theme.series[1], zorder=3, label="really kept")
        for row, (left, right) in enumerate(zip(asked, real, strict=True)):
            text = f"{right:.2f} %  ({100 * (right / left - 1):+.1f} %)"
            note(panel, text, (max(left, right), row), theme)
        return max(*asked, *real)

    known = (cell for cell in cells if cell.equivalent_retention is not None)
    pruned = [cell for cell in known if not cell.is_baseline]
    label = "% of all visual tokens, averaged over the layers of the language model"
    return _bars(pruned, draw, label, 1.24, theme)


def _bars(
    cells: Sequence[CellSummary],
    draw: Callable[[Axes, Sequence[CellSummary]], float],
    label: str,
    room: float,
    theme: Theme,
) -> Figure | None:
    """One panel per table of cells on one scale, with one row per cell from top to bottom.

    Args:
        cells: Cells; `None` is returned if there are none.
        draw: Draws the rows of a panel and returns the largest value.
        label: Of the scale.
        room: End of the scale, in largest values.
        theme: Colours.
    """
    if not cells:
        return None
    tables = tables_of_cells(cells)
    height = 1.1 + sum(0.45 + 0.3 * len(part) for _, part in tables)
    ratios = [len(part) + 1 for _, part in tables]
    figure, panels = new_figure((9.6, height), theme, rows=len(tables), height_ratios=ratios)
    largest = 0.0
    for panel, (name, part) in zip(panels, tables, strict=True):
        title(panel, name, theme)
        panel.set_yticks(range(len(part)), [shortened(text, LONGEST_NAME) for text in labels(part)])
        panel.set_ylim(len(part) - 0.4, -0.6)
        panel.grid(axis="x", color=theme.grid, linewidth=0.7)
        largest = max(largest, draw(panel, part))
    for panel in panels:
        panel.set_xlim(0, largest * room)
    panels[-1].set_xlabel(label)
    legend_above(figure, panels[0], theme)
    return figure


# File names of the same plot: if all headline metrics are accuracies, and otherwise.
ACCURACY_PLOT, SCORE_PLOT = "accuracy_vs_retention.png", "score_vs_retention.png"
COST_PLOT = "score_vs_cost.png"
CAPTIONS = {
    ACCURACY_PLOT: "Accuracy over the share of visual tokens asked for",
    SCORE_PLOT: "Scores over the share of visual tokens asked for",
    COST_PLOT: "Scores over time and over tokens; none beats a ringed cell in both",
    "latency.png": "Where the time of one question goes",
    "tokens_kept.png": "Tokens asked for and tokens really kept",
}
_MARKERS = "osD^vP*Xph<>"


@dataclass(frozen=True)
class Plot:
    """A figure as PNG, and its title."""

    caption: str
    image: bytes


def draw_plots(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw all figures for which the cells have data, except the differences by group.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        File name -> figure, in the order in which a report shows them.
    """
    scored = [cell for cell in cells if cell.headline is not None]

    def series(cell: CellSummary) -> str:
        return _series(cell, [other for other in scored if other.benchmark == cell.benchmark])

    styles = _styles(scored, series, theme)
    alone = all(cell.metric == ACCURACY.name for cell in cells)
    drawn = {
        ACCURACY_PLOT if alone else SCORE_PLOT: score_plot(scored, series, styles, theme),
        COST_PLOT: pareto(scored, series, styles, theme),
        "latency.png": latency_bars(cells, theme),
        "tokens_kept.png": token_bars(cells, theme),
    }
    return {
        name: Plot(CAPTIONS[name], png(figure))
        for name, figure in drawn.items()
        if figure is not None
    }


def draw_forests(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw differences to `full`: one figure per benchmark and group with several values.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        File name -> figure, in the order in which a report shows them.
    """
    several = len({cell.benchmark for cell in cells}) > 1
    drawn: dict[str, Plot] = {}
    for family in families_of(cells):
        headline = family.metric == family.members[0].cell.metric
        if not headline or len({member.value for member in family.members}) < 2:
            continue
        own = [cell for cell in cells if cell.benchmark == family.benchmark]
        figure = forest_plot(family, partial(_series, cells=own), theme)
        where = f"{family.benchmark}: " if several else ""
        name = _file_name(f"{family.benchmark} {family.group}" if several else family.group, drawn)
        drawn[name] = Plot(where + caption_of(family), png(figure))
    return drawn


def _file_name(words: str, taken: Collection[str]) -> str:
    """Make a valid, unused file name from user-defined names."""
    stem = "differences_by_" + re.sub("[^a-z0-9]+", "_", words.lower()).strip("_")[:80]
    name, number = f"{stem}.png", 2
    while name in taken:
        name, number = f"{stem}_{number}.png", number + 1
    return name


def save_plots(plots: Mapping[str, Plot], folder: Path) -> None:
    """Write figures as PNG files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        (folder / name).write_bytes(plot.image)


def _series(cell: CellSummary, cells: Sequence[CellSummary]) -> str:
    """Name of a cell's series: cells of a series differ only in retention."""
    if len({other.run_id for other in cells}) > 1:
        own = [other for other in cells if other.run_id == cell.run_id]
        return f"{cell.run_id}: {_series(cell, own)}"
    variants = {
        json.dumps(dict(other.options), sort_keys=True, default=str)
        for other in cells
        if other.method == cell.method
    }
    if len(variants) == 1:
        return cell.method
    return cell.series or cell.method


def _styles(cells: Sequence[CellSummary], series: Series, theme: Theme) -> Styles:
    """Colour and marker of every series except `full`, equal in all figures."""
    names = dict.fromkeys(series(cell) for cell in cells if not cell.is_baseline)
    return {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(names)
    }
