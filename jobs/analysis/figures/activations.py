"""Figures of `tango analyze activations`: norms along the layers, activations by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jobs.analysis.figures.maps import heat_map, legend, mark, plain_log, titled
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.activations import STATISTICS, ActivationReport

# Ratio of the largest bar to the smallest from which the axis is logarithmic.
_WIDE = 30


def group_names(report: ActivationReport) -> tuple[str, str]:
    """What the two groups are called."""
    return ("sinks" if report.are_sinks else "most attended (no sinks)"), "other patches"


def norms_by_layer(report: ActivationReport, theme: Theme) -> Figure:
    """Norms of both groups along the layers, and where the first group is."""
    figure, (curves, place) = new_figure((10.8, 4.2), theme, columns=2)
    groups = (report.sinks, report.others)
    for group, name, colour in zip(
        groups, group_names(report), (theme.series[1], theme.series[0]), strict=True
    ):
        layers = np.arange(len(group.norms))
        low, high = group.low.numpy(), group.high.numpy()
        curves.fill_between(layers, low, high, color=colour, alpha=0.22, linewidth=0)
        curves.plot(
            layers,
            group.norms.numpy(),
            color=colour,
            linewidth=1.8,
            marker="o",
            markersize=4,
            label=f"{name}: {group.positions} position(s)",
        )
    curves.set_yscale("log")
    plain_log(curves.yaxis)
    curves.set_xlabel("layer (0: embeddings)")
    curves.set_ylabel("norm of a patch")
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    curves.grid(color=theme.grid, linewidth=0.7)
    titled(curves, "Norms along the layers; band: all positions", theme)
    legend(curves, theme, loc="best")
    height, width = report.ranks.grid
    ranks = np.array(report.ranks.rank_mean).reshape(height, width) / (height * width)
    label = "mean rank by attn (% of all positions)"
    heat_map(figure, place, 100 * ranks, theme, label=label, colours="viridis_r")
    mark(place, report.chosen[:20], width)
    titled(place, f"Where: {group_names(report)[0]}", theme)
    return figure


def activation_bars(report: ActivationReport, layers: Sequence[int], theme: Theme) -> Figure:
    """The statistics of both groups side by side, one panel per layer."""
    figure, panels = new_figure((10.8, 0.5 + 3.3 * len(layers)), theme, rows=len(layers))
    places = np.arange(len(STATISTICS))
    for layer, panel in zip(layers, panels, strict=True):
        pairs = (report.sinks.statistics[layer], report.others.statistics[layer])
        for shift, values, name, colour in zip(
            (-0.2, 0.2),
            pairs,
            group_names(report),
            (theme.series[1], theme.series[0]),
            strict=True,
        ):
            panel.bar(places + shift, values, width=0.38, color=colour, label=name)
            for place, value in zip(places, values, strict=True):
                panel.text(
                    place + shift,
                    value,
                    f"{value:.3g}",
                    ha="center",
                    va="bottom",
                    fontsize=7.5,
                    color=theme.foreground,
                )
        if max(map(max, pairs)) > _WIDE * max(1e-9, min(map(min, pairs))):
            panel.set_yscale("log")
            plain_log(panel.yaxis)
        panel.margins(y=0.12)
        panel.set_xticks(places, STATISTICS)
        panel.set_ylabel("absolute activation")
        panel.grid(axis="y", color=theme.grid, linewidth=0.7)
        titled(panel, f"Layer {layer}", theme)
        legend(panel, theme, loc="upper right")
    return figure
