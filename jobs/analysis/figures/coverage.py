"""Figures of `tango analyze coverage`: over tokens, time and place, and beside scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from jobs.analysis.figures.curves import Points, draw_series, legend_below, shortened, styles
from jobs.analysis.figures.maps import heat_map, titled
from jobs.report.theme import Theme, legend_above, new_figure
from tango_core.analysis.coverage import TAIL, TIME_PARTS, CoverageTotals


def over_tokens(series: Mapping[str, Sequence[CoverageTotals]], theme: Theme) -> Figure:
    """Mean cosine and that of the worst tokens over the share of tokens really kept."""
    figure, (left, right) = new_figure((11.4, 5.0), theme, columns=2)
    for panel, measure, what in (
        (left, "mean", "mean over all tokens"),
        (right, "tail", f"mean over the worst {100 * TAIL:g} %"),
    ):
        points: dict[str, Points] = {
            name: [(100 * one.retention, getattr(one, measure)) for one in totals]
            for name, totals in series.items()
        }
        draw_series(panel, points, theme)
        panel.set_xlabel("tokens kept (%)")
        panel.set_ylabel("cosine to the nearest kept token")
        titled(panel, what, theme)
    legend_below(figure, left, theme)
    return figure


def along_the_clip(totals: Mapping[str, CoverageTotals], theme: Theme) -> Figure:
    """Mean and worst cosine in every part of the clip."""
    figure, (left, right) = new_figure((11.4, 4.6), theme, columns=2)
    for panel, column, what in ((left, 1, "mean"), (right, 2, "worst token of all clips")):
        points: dict[str, Points] = {
            name: [(100 * (part[0] + 0.5) / TIME_PARTS, part[column]) for part in one.by_time]
            for name, one in totals.items()
        }
        draw_series(panel, points, theme)
        panel.set_xlim(0, 100)
        panel.set_xlabel("time (% of the clip)")
        panel.set_ylabel("cosine to the nearest kept token")
        titled(panel, what, theme)
    legend_below(figure, left, theme)
    return figure


def over_the_frame(totals: Mapping[str, CoverageTotals], theme: Theme) -> Figure:
    """Mean cosine above and worst one below at every place, methods side by side."""
    columns = len(totals)
    places = {name: one.by_place for name, one in totals.items()}
    height, width = next(iter(places.values()))[0]
    tall = max(0.6, min(1.6, height / width))
    figure, panels = new_figure(
        (2.9 * columns + 0.4, 2 * (2.3 * tall + 0.5)), theme, rows=2, columns=columns
    )
    means = {name: mean.numpy() for name, (_, mean, _) in places.items()}
    worsts = {name: worst.numpy() for name, (_, _, worst) in places.items()}
    for row, (what, values) in enumerate((("mean", means), ("worst", worsts))):
        low = min(float(value.min()) for value in values.values())
        high = max(float(value.max()) for value in values.values())
        for column, (name, value) in enumerate(values.items()):
            panel = panels[row * columns + column]
            heat_map(figure, panel, value, theme, label="", limits=(low, max(high, low + 1e-3)))
            panel.set_xlabel("")
            panel.set_ylabel("")
            titled(panel, f"{shortened(name, 20)}: {what}", theme)
    return figure


def beside_score(
    cells: Sequence[tuple[str, CoverageTotals, float]], title: str, theme: Theme
) -> Figure:
    """Score of every cell over its coverage, one colour per series.

    Args:
        cells: Series, coverage and score in [0, 1].
        title: What readers call the score.
        theme: Colours.
    """
    figure, panels = new_figure((13.0, 4.9), theme, columns=3)
    names = list(dict.fromkeys(name for name, _, _ in cells))
    known = styles(names, theme)
    for panel, measure, what in zip(
        panels,
        ("mean", "tail", "retention"),
        ("mean cosine", f"mean cosine of the worst {100 * TAIL:g} %", "tokens kept (share)"),
        strict=True,
    ):
        for name in names:
            own = [(getattr(one, measure), share) for other, one, share in cells if other == name]
            colour, marker = known.get(name, (theme.foreground, "."))
            panel.scatter(
                [x for x, _ in own],
                [100 * y for _, y in own],
                s=30 if name in known else 16,
                color=colour,
                marker=marker,
                alpha=0.9 if name in known else 0.45,
                linewidths=0,
                label=shortened(name) if name in known else None,
            )
        panel.set_xlabel(what)
        panel.set_ylabel(f"{title} (%)")
        panel.grid(color=theme.grid, linewidth=0.6)
    legend_below(figure, panels[0], theme, columns=5)
    return figure


def correlation_bars(
    rows: Sequence[tuple[str, Sequence[float]]],
    measures: Sequence[str],
    title: str,
    theme: Theme,
) -> Figure:
    """Rank correlations with the score: of coverage, and of the number of tokens alone.

    Args:
        rows: What is compared, and the correlation of every measure.
        measures: Their names, the number of tokens last.
        title: What readers call the score.
        theme: Colours.
    """
    figure, (panel,) = new_figure((9.6, 1.5 + 0.78 * len(rows)), theme)
    places = np.arange(len(rows))
    colours = (*theme.series[: len(measures) - 1], theme.series[7])
    for number, (name, colour) in enumerate(zip(measures, colours, strict=True)):
        shift = 0.21 * (number - (len(measures) - 1) / 2)
        values = [float(row[1][number]) for row in rows]
        panel.barh(places + shift, values, height=0.2, color=colour, label=name)
        for place, value in zip(places, values, strict=True):
            panel.text(
                max(value, 0) + 0.01,
                place + shift,
                "-" if np.isnan(value) else f"{value:.2f}",
                va="center",
                fontsize=8.5,
                color=theme.foreground,
            )
    panel.set_yticks(places, [row[0] for row in rows])
    panel.invert_yaxis()
    panel.axvline(0, color=theme.foreground, linewidth=0.8)
    known = [value for _, values in rows for value in values if not np.isnan(value)]
    panel.set_xlim(min(-0.05, *known), 1.1)
    panel.set_xlabel(f"rank correlation with {title}")
    panel.grid(axis="x", color=theme.grid, linewidth=0.6)
    legend_above(figure, panel, theme)
    return figure
