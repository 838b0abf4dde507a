"""The figures of a report, drawn without a display and without matplotlib's global state."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jobs.report.forest_plot import caption_of, forest_plot
from jobs.report.formatting import milliseconds, shortened
from jobs.report.pareto_plot import pareto
from jobs.report.tables.labels import labels, tables_of_cells
from jobs.report.theme import LIGHT, Theme, legend_above, new_figure, note, png
from jobs.results.cell_summary import CellSummary
from jobs.results.group_differences import families_of
from jobs.results.headlines import headline_title
from tango_core.metrics import ACCURACY, Estimate

# Files of the same plot: of accuracies, and where there are other headlines.
ACCURACY_PLOT, SCORE_PLOT = "accuracy_vs_retention.png", "score_vs_retention.png"
COST_PLOT = "score_vs_cost.png"
CAPTIONS = {
    ACCURACY_PLOT: "Accuracy over the share of visual tokens asked for",
    SCORE_PLOT: "Scores over the share of visual tokens asked for",
    COST_PLOT: "Scores over time and over tokens; none beats a ringed cell in both",
    "latency.png": "Where the time of one question goes",
    "tokens_kept.png": "Tokens asked for and tokens really kept",
}
STACKED = ("vision", "compress", "prefill", "decode")
_MARKERS = "osD^vP*Xph<>"
_LETTERS_PER_INCH = 11.5
LONGEST_NAME = 44


@dataclass(frozen=True)
class Plot:
    """A figure as PNG, and what stands above it."""

    caption: str
    image: bytes


def draw_plots(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw every figure that the cells have data for, but for the differences by group.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        File name -> figure, in the order in which a report shows them.
    """
    alone = all(cell.metric == ACCURACY.name for cell in cells)
    drawn = {
        ACCURACY_PLOT if alone else SCORE_PLOT: _scores(cells, theme),
        COST_PLOT: _cost(cells, theme),
        "latency.png": _latency(cells, theme),
        "tokens_kept.png": _tokens(cells, theme),
    }
    return {
        name: Plot(CAPTIONS[name], png(figure))
        for name, figure in drawn.items()
        if figure is not None
    }


def draw_forests(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw differences to all tokens: a figure per benchmark and group that has several values.

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
    """A file's name from names that are the users'."""
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


def _scores(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Headlines over the retention asked for, one panel per benchmark, with 95 % intervals."""
    scored = [cell for cell in cells if cell.headline is not None]
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in scored))
    if not benchmarks:
        return None
    columns = min(2, len(benchmarks))
    rows = -(-len(benchmarks) // columns)
    width = 7.6 if columns == 1 else 11.0
    styles = _styles(scored, theme)
    longest = max(map(len, styles), default=0)
    legend_columns = max(1, min(6, int(width * _LETTERS_PER_INCH / (longest + 8))))
    height = 0.3 + 3.6 * rows + 0.22 * -(-(1 + len(styles)) // legend_columns)
    figure, panels = new_figure((width, height), theme, rows, columns)
    for panel, benchmark in zip(panels, benchmarks, strict=False):
        own = [cell for cell in scored if cell.benchmark == benchmark]
        _score_panel(panel, own, styles, theme)
        panel.set_title(benchmark, loc="left", fontweight="bold", color=theme.foreground)
    for panel in panels[len(benchmarks) :]:
        panel.set_visible(False)
    handles: dict[str, Artist] = {}
    for panel in panels[: len(benchmarks)]:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(name), handle)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=min(legend_columns, len(handles)),
            frameon=False,
            labelcolor=theme.foreground,
        )
    return figure


def _cost(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Scores over time and over tokens, in the colours of the figure before."""
    scored = [cell for cell, _ in _scored(cells)]

    def series(cell: CellSummary) -> str:
        return _series(cell, [other for other in scored if other.benchmark == cell.benchmark])

    return pareto(scored, series, _styles(scored, theme), theme)


def _score_panel(
    panel: Axes, cells: Sequence[CellSummary], styles: dict[str, tuple[str, str]], theme: Theme
) -> None:
    """One benchmark: the full-token run as a band, the other cells as points side by side."""
    for cell, score in _scored(cells):
        if cell.is_baseline:
            low, high = 100 * score.low, 100 * score.high
            panel.axhspan(low, high, color=theme.foreground, alpha=0.07, linewidth=0)
            panel.axhline(
                100 * score.value,
                color=theme.foreground,
                linewidth=1.2,
                dashes=(5, 3),
                label="full",
            )
    pruned = [(cell, score) for cell, score in _scored(cells) if not cell.is_baseline]
    retentions = sorted({cell.retention_requested for cell, _ in pruned})
    present = list(dict.fromkeys(_series(cell, cells) for cell, _ in pruned))
    step = min(0.16, 0.66 / max(1, len(present)))
    for index, name in enumerate(present):
        colour, marker = styles[name]
        own = sorted(
            (pair for pair in pruned if _series(pair[0], cells) == name),
            key=lambda pair: pair[0].retention_requested,
        )
        shift = (index - (len(present) - 1) / 2) * step
        x = [retentions.index(cell.retention_requested) + shift for cell, _ in own]
        y = [100 * score.value for _, score in own]
        below = [100 * (score.value - score.low) for _, score in own]
        above = [100 * (score.high - score.value) for _, score in own]
        panel.plot(x, y, color=colour, linewidth=1, alpha=0.45)
        panel.errorbar(
            x,
            y,
            yerr=(below, above),
            fmt=marker,
            markersize=7,
            color=colour,
            markeredgecolor=theme.background,
            markeredgewidth=0.7,
            elinewidth=1.4,
            capsize=0,
            label=name,
        )
    panel.set_xticks(range(len(retentions)), [f"{100 * share:g} %" for share in retentions])
    panel.set_xlim(-0.6, max(len(retentions), 1) - 0.4)
    panel.set_xlabel("visual tokens asked for")
    panel.set_ylabel(f"{headline_title(cells)} (%)")
    panel.grid(axis="y", color=theme.grid, linewidth=0.7)


def _scored(cells: Sequence[CellSummary]) -> list[tuple[CellSummary, Estimate]]:
    """The cells with a known headline, and that headline."""
    return [(cell, cell.headline) for cell in cells if cell.headline is not None]


def _latency(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Median milliseconds per stage, stacked, one bar per cell."""
    timed = [cell for cell in cells if any(stage in cell.latency_ms for stage in STACKED)]
    if not timed:
        return None
    figure, groups = _bars(timed, theme)
    colours = dict(zip(STACKED, theme.series, strict=False))
    stages = {
        stage: colour
        for stage, colour in colours.items()
        if any(stage in cell.latency_ms for cell in timed)
    }
    longest = 1.0
    for panel, own in groups:
        ends = [0.0] * len(own)
        for stage, colour in stages.items():
            widths = [cell.p50(stage) or 0.0 for cell in own]
            panel.barh(
                range(len(own)),
                widths,
                left=ends,
                height=0.68,
                color=colour,
                edgecolor=theme.background,
                linewidth=0.8,
                label=stage,
            )
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
        for row, (end, cell) in enumerate(zip(ends, own, strict=True)):
            cached = "" if "vision" in cell.latency_ms else "  (vision from cache)"
            note(panel, milliseconds(end) + cached, (end, row), theme)
        longest = max(longest, *ends)
    for panel, _ in groups:
        panel.set_xlim(0, longest * 1.2)
    groups[-1][0].set_xlabel(
        "median milliseconds: vision and compress per clip, prefill and decode per question"
    )
    legend_above(figure, groups[0][0], theme)
    return figure


def _tokens(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Share of the tokens asked for against the share really kept, averaged over the layers."""
    pruned = [
        cell for cell in cells if not cell.is_baseline and cell.equivalent_retention is not None
    ]
    if not pruned:
        return None
    figure, groups = _bars(pruned, theme)
    largest = 0.0
    for panel, own in groups:
        rows = range(len(own))
        asked = [100 * cell.retention_requested for cell in own]
        real = [100 * (cell.equivalent_retention or 0.0) for cell in own]
        panel.hlines(rows, asked, real, color=theme.series[1], linewidth=2.2, alpha=0.6)
        panel.scatter(
            asked,
            rows,
            s=62,
            facecolors="none",
            edgecolors=theme.foreground,
            linewidths=1.3,
            label="asked for",
        )
        panel.scatter(real, rows, s=26, color=theme.series[1], zorder=3, label="really kept")
        for row, (left, right) in enumerate(zip(asked, real, strict=True)):
            text = f"{right:.2f} %  ({100 * (right / left - 1):+.1f} %)"
            note(panel, text, (max(left, right), row), theme)
        largest = max(largest, *asked, *real)
    for panel, _ in groups:
        panel.set_xlim(0, largest * 1.24)
    groups[-1][0].set_xlabel(
        "% of all visual tokens, averaged over the layers of the language model"
    )
    legend_above(figure, groups[0][0], theme)
    return figure


def _bars(
    cells: Sequence[CellSummary], theme: Theme
) -> tuple[Figure, list[tuple[Axes, list[CellSummary]]]]:
    """One panel per table of cells below each other, one row per cell, top to bottom."""
    titles, parts = zip(*tables_of_cells(cells), strict=True)
    height = 1.1 + sum(0.45 + 0.3 * len(part) for part in parts)
    figure, panels = new_figure(
        (9.6, height), theme, rows=len(parts), height_ratios=[len(part) + 1 for part in parts]
    )
    for title, panel, part in zip(titles, panels, parts, strict=True):
        panel.set_title(title, loc="left", fontweight="bold", color=theme.foreground)
        panel.set_yticks(range(len(part)), [shortened(text, LONGEST_NAME) for text in labels(part)])
        panel.set_ylim(len(part) - 0.4, -0.6)
        panel.grid(axis="x", color=theme.grid, linewidth=0.7)
    return figure, list(zip(panels, parts, strict=True))


def _series(cell: CellSummary, cells: Sequence[CellSummary]) -> str:
    """The name under which cells that differ in retention alone are connected."""
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


def _styles(cells: Sequence[CellSummary], theme: Theme) -> dict[str, tuple[str, str]]:
    """Series -> (colour, marker), the same in all panels."""
    names = dict.fromkeys(
        _series(cell, [other for other in cells if other.benchmark == cell.benchmark])
        for cell in cells
        if not cell.is_baseline
    )
    return {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(names)
    }
