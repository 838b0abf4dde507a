"""Figures of `tango analyze attention` and `sinks`: sorted signals, mean maps, ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from jobs.analysis.figures.maps import SIGNAL_NAMES, heat_map, legend, mark, plain_log, titled
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.attention import BAND, SignalReport
from tango_core.analysis.sinks import SinkReport

# Ratio of the first to the last rank from which the axis is logarithmic.
_STEEP = 5


def sorted_signals(reports: Sequence[SignalReport], theme: Theme) -> Figure:
    """Left the signals by rank with their band over clips, right what the first ranks hold."""
    figure, (curves, parts) = new_figure((10.6, 4.0), theme, columns=2)
    for report, colour in zip(reports, theme.series, strict=False):
        name = SIGNAL_NAMES[report.ranks.score]
        total = len(report.by_rank)
        ranks = np.arange(1, total + 1)
        low, high = report.low.numpy(), report.high.numpy()
        curves.fill_between(ranks, low, high, color=colour, alpha=0.25, linewidth=0)
        curves.plot(ranks, report.by_rank.numpy(), color=colour, linewidth=1.8, label=name)
        held = np.concatenate([[0.0], report.by_rank.cumsum(dim=0).numpy()]) / total
        shares = np.arange(total + 1) / total
        parts.plot(100 * shares, 100 * held, color=colour, linewidth=1.8, label=name)
    curves.axhline(1, color=theme.foreground, linewidth=1, dashes=(4, 3))
    if any(float(report.by_rank[0]) > _STEEP * float(report.by_rank[-1]) for report in reports):
        curves.set_yscale("log")
        plain_log(curves.yaxis)
    curves.set_xlabel("rank within the frame")
    curves.set_ylabel("signal, 1 = mean of the frame")
    ends = " to ".join(f"{100 * end:g}" for end in BAND)
    has_band = any(bool((report.high > report.low).any()) for report in reports)  # not of one clip
    titled(curves, f"Sorted; band: {ends} % of the clips" if has_band else "Sorted", theme)
    parts.plot([0, 100], [0, 100], color=theme.foreground, linewidth=1, dashes=(4, 3))
    parts.set_xlabel("tokens of a frame, the highest first (%)")
    parts.set_ylabel("part of the frame's signal (%)")
    parts.set_xlim(0, 100)
    parts.set_ylim(0, 102)
    titled(parts, "What they hold together", theme)
    for panel in (curves, parts):
        panel.grid(color=theme.grid, linewidth=0.7)
    legend(parts, theme, loc="lower right")
    return figure


def mean_maps(reports: Sequence[SignalReport], theme: Theme) -> Figure:
    """The mean of every signal at every position, the ten highest numbered."""
    figure, panels = new_figure((5.0 * len(reports) + 0.4, 4.4), theme, columns=len(reports))
    for report, panel in zip(reports, panels, strict=True):
        height, width = report.ranks.grid
        values = report.mean_map.view(height, width).numpy()
        heat_map(figure, panel, values, theme, label="signal, 1 = mean of the frame")
        mark(panel, report.top(), width)
        titled(panel, f"{SIGNAL_NAMES[report.ranks.score]}: mean over frames", theme)
    return figure


def rank_maps(reports: Sequence[SinkReport], theme: Theme) -> Figure:
    """Per signal the mean rank of every position, its spread, and both against each other."""
    figure, panels = new_figure((13.2, 4.1 * len(reports)), theme, rows=len(reports), columns=3)
    for row, report in enumerate(reports):
        name, (height, width) = SIGNAL_NAMES[report.score], report.grid
        total = height * width
        mean = np.array(report.rank_mean) / total
        spread = np.array(report.rank_spread) / total
        left, middle, right = panels[3 * row : 3 * row + 3]
        for panel, values, what in ((left, mean, "mean rank"), (middle, spread, "spread of it")):
            heat_map(
                figure,
                panel,
                100 * values.reshape(height, width),
                theme,
                label="% of all positions",
                colours="viridis_r",
            )
            mark(panel, report.sinks, width)
            titled(panel, f"{name}: {what}", theme)
        rule = report.rule
        right.add_patch(
            Rectangle(
                (0, 0),
                100 * rule.max_mean_rank,
                100 * rule.max_spread,
                facecolor=theme.series[1],
                alpha=0.18,
                linewidth=0,
            )
        )
        by_chance = 100 / 12**0.5  # of ranks in random order
        right.axhline(by_chance, color=theme.foreground, linewidth=1, dashes=(4, 3))
        right.text(
            99, by_chance + 0.5, "random ranks", ha="right", fontsize=8, color=theme.foreground
        )
        is_sink = np.isin(np.arange(total), report.sinks)
        right.scatter(100 * mean, 100 * spread, s=14, color=theme.series[0], linewidths=0)
        right.scatter(100 * mean[is_sink], 100 * spread[is_sink], s=34, color=theme.series[1])
        right.set_xlim(0, 100)
        right.set_ylim(0, max(34, 105 * spread.max()))
        right.set_xlabel("mean rank (% of all positions)")
        right.set_ylabel("spread (%)")
        right.grid(color=theme.grid, linewidth=0.7)
        titled(right, f"{name}: {len(report.sinks)} sink(s) in the shaded corner", theme)
    return figure
