"""The plots of a report, with their file names and captions.

All are drawn without a display and without matplotlib's global state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from jobs.report.difference_plots import Series, caption_of, forest_plot
from jobs.report.formatting import milliseconds, shortened
from jobs.report.tables.cells import labels, tables_of_cells
from jobs.report.theme import LIGHT, Style, Theme, handles_of, legend, new_figure, note, png, title
from jobs.results.cell_summary import CellSummary, headline_title
from jobs.results.comparisons import families_of
from jobs.results.quantities import are_ranked
from tango_core.metrics import ACCURACY

_LETTERS_PER_INCH = 11.5
# (colour, marker) by name of a cell's series.
Styles = Mapping[str, tuple[str, str]]


def _by_benchmark(cells: Sequence[CellSummary]) -> dict[str, list[CellSummary]]:
    found: dict[str, list[CellSummary]] = {}
    for cell in cells:
        found.setdefault(cell.benchmark, []).append(cell)
    return found


def _in_percent(cell: CellSummary) -> tuple[float, float, float]:
    """Headline metric of a cell that has one, and both ends of its interval."""
    score = cell.headline
    assert score is not None
    return 100 * score.value, 100 * score.low, 100 * score.high


def score_plot(
    cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> Figure:
    """Headline metrics over the requested retention with 95 % intervals, one panel per benchmark.

    Args:
        cells: At least one cell, each with a headline metric.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.
    """
    benchmarks = _by_benchmark(cells)
    columns = min(2, len(benchmarks))
    rows = -(-len(benchmarks) // columns)
    width = 7.6 if columns == 1 else 11.0
    longest = max(map(len, styles), default=0)
    fitting = max(1, min(6, 1 + len(styles), int(width * _LETTERS_PER_INCH / (longest + 8))))
    height = 0.3 + 3.6 * rows + 0.22 * -(-(1 + len(styles)) // fitting)
    figure, panels = new_figure((width, height), theme, rows, columns, used=len(benchmarks))
    for panel, (benchmark, own) in zip(panels, benchmarks.items(), strict=True):
        _panel_score(panel, own, series, styles, theme)
        title(panel, benchmark, theme)
    legend(figure, handles_of(panels), theme, loc="outside lower center", ncols=fitting)
    return figure


def _panel_score(
    panel: Axes, cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> None:
    """Draw one benchmark: the baseline `full` as a band, the other cells as points."""
    dashed: Style = {"color": theme.foreground, "linewidth": 1.2, "dashes": (5, 3), "label": "full"}
    members: dict[str, list[CellSummary]] = {}
    for cell in cells:
        if cell.is_baseline:
            value, *ends = _in_percent(cell)
            panel.axhspan(*ends, color=theme.foreground, alpha=0.07, linewidth=0)
            panel.axhline(value, **dashed)
        else:
            members.setdefault(series(cell), []).append(cell)
    retentions = sorted({cell.retention_requested for own in members.values() for cell in own})
    step = min(0.16, 0.66 / max(1, len(members)))
    point: Style = {"markersize": 7, "markeredgecolor": theme.background, "markeredgewidth": 0.7}
    for index, (name, own) in enumerate(members.items()):
        colour, marker = styles[name]
        own.sort(key=lambda cell: cell.retention_requested)
        shift = (index - (len(members) - 1) / 2) * step
        x = [retentions.index(cell.retention_requested) + shift for cell in own]
        y, low, high = np.array([_in_percent(cell) for cell in own]).T
        panel.plot(x, y, color=colour, linewidth=1, alpha=0.45)
        line: Style = {"color": colour, "fmt": marker, "elinewidth": 1.4, "label": name}
        panel.errorbar(x, y, yerr=(y - low, high - y), **line, **point)
    panel.set_xticks(range(len(retentions)), [f"{100 * share:g} %" for share in retentions])
    panel.set_xlim(-0.6, max(len(retentions), 1) - 0.4)
    panel.set_xlabel("visual tokens asked for")
    panel.set_ylabel(f"{headline_title(cells)} (%)")
    panel.grid(axis="y", color=theme.grid, linewidth=0.7)


MOST_NAMED = 14
LONGEST_FRONT_NAME = 32


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
    """Median milliseconds of compression and prefill; `None` if prefill was not measured.

    The vision tower processes every frame whatever the method.
    """
    prefill = cell.p50("prefill")
    return None if prefill is None else (cell.p50("compress") or 0.0) + prefill


def percent_of_tokens(cell: CellSummary) -> float | None:
    """Kept visual tokens in percent, averaged over the layers of the language model."""
    return None if cell.equivalent_retention is None else 100 * cell.equivalent_retention


COSTS: Mapping[str, Callable[[CellSummary], float | None]] = {
    "compress + prefill, median ms": milliseconds_of,
    "visual tokens, % averaged over the layers": percent_of_tokens,
}


def pareto(
    cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> Figure | None:
    """Headline metric over time and over tokens, with Pareto fronts; one row per benchmark.

    Args:
        cells: Cells with a headline metric.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.

    Returns:
        The figure; `None` if no benchmark has two cells with a cost.
    """
    rows = []
    for benchmark, own in _by_benchmark(cells).items():
        points = [
            [(cell, value) for cell in own if (value := cost(cell))] for cost in COSTS.values()
        ]
        if max(map(len, points)) > 1:
            rows.append((benchmark, own, points))
    if not rows:
        return None
    size = (11.0, 0.3 + 3.8 * len(rows))
    figure, panels = new_figure(size, theme, rows=len(rows), columns=len(COSTS))
    for row, (benchmark, own, points) in enumerate(rows):
        own_panels = panels[row * len(COSTS) :]
        for panel, own_points, label in zip(own_panels, points, COSTS, strict=False):
            if own_points:
                _panel_pareto(panel, own_points, series, styles, theme)
            panel.set_visible(bool(own_points))
            panel.set_xlabel(label)
        title(own_panels[0], benchmark, theme)
        own_panels[0].set_ylabel(f"{headline_title(own)} (%)")
    return figure


def _panel_pareto(
    panel: Axes,
    points: Sequence[tuple[CellSummary, float]],
    series: Series,
    styles: Styles,
    theme: Theme,
) -> None:
    """Draw points with intervals; points on the front are ringed, connected and named."""
    ink = theme.foreground
    values = []
    for cell, cost in points:
        value, low, high = _in_percent(cell)
        values.append((cost, value))
        colour, marker = (ink, "s") if cell.is_baseline else styles[series(cell)]
        panel.vlines(cost, low, high, color=colour, linewidth=1, alpha=0.28)
        panel.plot(cost, value, marker, color=colour, markersize=5, markeredgewidth=0, alpha=0.9)
    front = pareto_front(values) if are_ranked(cell for cell, _ in points) else []
    x, y = ([values[index][at] for index in front] for at in (0, 1))
    panel.plot(x, y, color=ink, linewidth=1.1, drawstyle="steps-post", alpha=0.7, zorder=1)
    panel.scatter(x, y, s=72, facecolors="none", edgecolors=ink, linewidths=1.1, zorder=3)
    # Number the points of the front, and list their names in the emptiest corner of the panel.
    shown = []
    for number, index in enumerate(front, 1):
        corner: Style = {"xytext": (-6, 6), "ha": "right", "va": "baseline", "fontsize": 8}
        note(panel, f"{number}", values[index], theme, **corner)
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
    """Stacked bars of median milliseconds per stage, one bar per cell and one panel per table.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        The figure; `None` if nothing was timed.
    """
    timed = [cell for cell in cells if any(stage in cell.latency_ms for stage in STACKED)]
    if not timed:
        return None
    stages = [stage for stage in STACKED if any(stage in cell.latency_ms for cell in timed)]
    tables = tables_of_cells(timed)
    height = 1.1 + sum(0.45 + 0.3 * len(own) for _, own in tables)
    ratios = [len(own) + 1 for _, own in tables]
    figure, panels = new_figure((9.6, height), theme, rows=len(tables), height_ratios=ratios)
    largest = 1.0
    for panel, (name, own) in zip(panels, tables, strict=True):
        title(panel, name, theme)
        panel.set_yticks(range(len(own)), [shortened(text, LONGEST_NAME) for text in labels(own)])
        panel.set_ylim(len(own) - 0.4, -0.6)
        panel.grid(axis="x", color=theme.grid, linewidth=0.7)
        ends = [0.0] * len(own)
        style: Style = {"height": 0.68, "edgecolor": theme.background, "linewidth": 0.8}
        for stage in stages:
            widths = [cell.p50(stage) or 0.0 for cell in own]
            style |= {"color": theme.series[STACKED.index(stage)], "label": stage}
            panel.barh(range(len(own)), widths, left=ends, **style)
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for row, (end, cell) in enumerate(zip(ends, own, strict=True)):
            cached = "" if "vision" in cell.latency_ms else "  (vision from cache)"
            note(panel, milliseconds(end) + cached, (end, row), theme)
        largest = max(largest, *ends)
    for panel in panels:
        panel.set_xlim(0, largest * 1.2)
    panels[-1].set_xlabel(
        "median milliseconds: vision and compress per clip, prefill and decode per question"
    )
    legend(figure, handles_of(panels[:1]), theme)
    return figure


# File names of the same plot: if all headline metrics are accuracies, and otherwise.
ACCURACY_PLOT, SCORE_PLOT = "accuracy_vs_retention.png", "score_vs_retention.png"
CAPTIONS = {
    ACCURACY_PLOT: "Accuracy over the share of visual tokens asked for",
    SCORE_PLOT: "Scores over the share of visual tokens asked for",
    "score_vs_cost.png": "Scores over time and over tokens; none beats a ringed cell in both",
    "latency.png": "Where the time of one question goes",
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
    benchmarks = _by_benchmark(scored)

    def series(cell: CellSummary) -> str:
        return _series(cell, benchmarks[cell.benchmark])

    names = dict.fromkeys(series(cell) for cell in scored if not cell.is_baseline)
    styles = {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(names)
    }
    alone = all(cell.metric == ACCURACY.name for cell in cells)
    drawn = {
        ACCURACY_PLOT if alone else SCORE_PLOT: (
            score_plot(scored, series, styles, theme) if scored else None
        ),
        "score_vs_cost.png": pareto(scored, series, styles, theme),
        "latency.png": latency_bars(cells, theme),
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
    benchmarks = _by_benchmark(cells)
    several = len(benchmarks) > 1
    drawn: dict[str, Plot] = {}
    for family in families_of(cells):
        headline = family.metric == family.members[0].cell.metric
        if not headline or len({member.value for member in family.members}) < 2:
            continue
        own = partial(_series, cells=benchmarks[family.benchmark])
        where = f"{family.benchmark}: " if several else ""
        name = _file_name(where + family.group, drawn)
        drawn[name] = Plot(where + caption_of(family), png(forest_plot(family, own, theme)))
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
    run = f"{cell.run_id}: " if len({other.run_id for other in cells}) > 1 else ""
    variants = {
        json.dumps(dict(other.options), sort_keys=True, default=str)
        for other in cells
        if (other.run_id, other.method) == (cell.run_id, cell.method)
    }
    return run + (cell.method if len(variants) == 1 else cell.series or cell.method)
