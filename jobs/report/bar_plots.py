"""What a question costs, cell by cell: time per stage, and tokens asked for and really kept."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jobs.report.formatting import milliseconds, shortened
from jobs.report.tables.labels import labels, tables_of_cells
from jobs.report.theme import Theme, legend_above, new_figure, note
from jobs.results.cell_summary import CellSummary

STACKED = ("vision", "compress", "prefill", "decode")
LONGEST_NAME = 44


def latency_bars(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Median milliseconds per stage, stacked, one bar per cell.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        `None` where nothing was timed.
    """
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


def token_bars(cells: Sequence[CellSummary], theme: Theme) -> Figure | None:
    """Share of the tokens asked for against the share really kept, averaged over the layers.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        `None` where no cell prunes, or none of them knows what it kept.
    """
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
