"""Scores over the share of tokens asked for, beside the score with all of them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jobs.report.forest_plot import Series
from jobs.report.pareto_plot import Styles
from jobs.report.theme import Theme, new_figure
from jobs.results.cell_summary import CellSummary
from jobs.results.headlines import headline_title
from tango_core.metrics import Estimate

_LETTERS_PER_INCH = 11.5


def score_plot(
    cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
) -> Figure | None:
    """Headlines over the retention asked for, one panel per benchmark, with 95 % intervals.

    Args:
        cells: Cells of one run or of several.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.

    Returns:
        `None` where no cell has a headline.
    """
    scored = [cell for cell in cells if cell.headline is not None]
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in scored))
    if not benchmarks:
        return None
    columns = min(2, len(benchmarks))
    rows = -(-len(benchmarks) // columns)
    width = 7.6 if columns == 1 else 11.0
    longest = max(map(len, styles), default=0)
    legend_columns = max(1, min(6, int(width * _LETTERS_PER_INCH / (longest + 8))))
    height = 0.3 + 3.6 * rows + 0.22 * -(-(1 + len(styles)) // legend_columns)
    figure, panels = new_figure((width, height), theme, rows, columns)
    for panel, benchmark in zip(panels, benchmarks, strict=False):
        own = [cell for cell in scored if cell.benchmark == benchmark]
        _panel(panel, own, series, styles, theme)
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


def _panel(
    panel: Axes, cells: Sequence[CellSummary], series: Series, styles: Styles, theme: Theme
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
    members: dict[str, list[tuple[CellSummary, Estimate]]] = {}
    for cell, score in pruned:
        members.setdefault(series(cell), []).append((cell, score))
    step = min(0.16, 0.66 / max(1, len(members)))
    for index, (name, found) in enumerate(members.items()):
        colour, marker = styles[name]
        own = sorted(found, key=lambda pair: pair[0].retention_requested)
        shift = (index - (len(members) - 1) / 2) * step
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
