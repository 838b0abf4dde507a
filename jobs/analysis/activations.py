"""`tango analyze activations`: compare activations of attention sinks and of other patches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from jobs.analysis.attention import few_clips
from jobs.analysis.clips import JobClips
from jobs.analysis.figures import heat_map, label, legend, mark, plain_log
from jobs.analysis.page import Drawing, Page, Table, finish
from jobs.config.recipe import Job, RecipeError
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.activations import STATISTICS, ActivationReport, ActivationStudy
from tango_core.analysis.sinks import SinkRule
from tango_core.errors import InputError, UserError
from tango_core.models.towers.trace import raise_if_no_layer

# The axis is logarithmic if the largest bar is at least this many times the smallest.
_WIDE = 30


def analyze_activations(
    job: Job,
    folder: Path,
    cache_root: str,
    console: Console,
    *,
    layers: Sequence[int] = (),
    rule: SinkRule | None = None,
) -> int:
    """Compare activations and norms of sinks and other patches over all clips of a recipe.

    Clips are decoded and encoded, because the feature store does not hold layer outputs.

    Args:
        job: Its benchmarks, model, limit and shard are used; its methods are not.
        folder: Receives the page.
        cache_root: Directory or URL of the caches.
        console: Where to print.
        layers: Layers of the tower, 0 for the embeddings; empty for the last layer that the model
            uses.
        rule: Criterion for sinks; `None` for the default.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If a layer does not exist, the encoder does not expose layers, no clip could be
            decoded, or clips have different grids.
    """
    clips = JobClips(job, cache_root)
    num_layers = clips.encoder.num_layers
    try:
        if num_layers is not None:
            layers = layers or (num_layers,)
            raise_if_no_layer(layers, num_layers, clips.model.name)
        study = ActivationStudy(tuple(layers))
        for row, frames in clips.decoded():
            try:
                study.add(clips.encoder.trace(frames, study.layers))
            except UserError as error:
                raise InputError(f"{row.video_id}: {error}") from error
        subtitle = clips.subtitle(study.ranks.num_clips)
        report = study.report(rule or SinkRule())
    except UserError as error:
        raise RecipeError(" ".join(str(error).split())) from error
    return finish(_page(report, study.layers, subtitle), clips, folder, console)


def _page(report: ActivationReport, layers: Sequence[int], subtitle: str) -> Page:
    first = "sinks" if report.are_sinks else "most attended (no sinks)"
    groups = {first: report.sinks, "other patches": report.others}
    height, width = report.ranks.grid
    listed = ", ".join(f"({p // width}, {p % width})" for p in report.chosen[:12])
    findings = [
        f"{first}: {len(report.chosen)} of {height} x {width} patches, at (row, column) {listed}"
        + (", ..." if len(report.chosen) > 12 else "")
    ]
    for layer in layers:
        one, other = report.sinks.statistics[layer], report.others.statistics[layer]
        findings.append(
            f"layer {layer}: the largest activation of {first} is {one[0]:.3g} on average, that of "
            f"other patches {other[0]:.3g}; medians {one[-1]:.3g} and {other[-1]:.3g}; norms "
            f"{float(report.sinks.norms[layer]):.3g} and {float(report.others.norms[layer]):.3g}"
        )
    notes = few_clips(report.ranks)
    if not report.are_sinks:
        notes.insert(
            0,
            f"no patch is a sink by the rule (mean rank up to {report.ranks.rule.max_mean_rank:g}, "
            f"spread up to {report.ranks.rule.max_spread:g} of all positions); the "
            f"{len(report.chosen)} most attended patches are used instead",
        )
    statistics = [
        {
            "layer": str(layer),
            "group": name,
            "positions": str(group.positions),
            **{
                statistic: f"{value:.4g}"
                for statistic, value in zip(STATISTICS, group.statistics[layer], strict=True)
            },
        }
        for layer in layers
        for name, group in groups.items()
    ]
    channels = [
        {
            "layer": str(layer),
            "place": str(place),
            "channel": str(channel),
            "mean absolute activation": f"{value:.4g}",
        }
        for layer in layers
        for place, (channel, value) in enumerate(report.top_channels[layer], start=1)
    ]
    norms = [
        {
            "layer": str(layer),
            "group": name,
            "mean": f"{float(group.norms[layer]):.4g}",
            "lowest": f"{float(group.low[layer]):.4g}",
            "highest": f"{float(group.high[layer]):.4g}",
        }
        for layer in range(len(report.sinks.norms))
        for name, group in groups.items()
    ]
    return Page(
        title="Activations of sinks and of other patches",
        subtitle=subtitle,
        findings=findings,
        notes=notes,
        drawings=[
            Drawing(
                "norms",
                "Norms along the layers",
                "Euclidean norm of a patch after every block, averaged over frames and clips. "
                "Line: mean over the positions of a group, band: lowest to highest position. "
                "Right: mean rank of every patch by the attention it receives in the last block, "
                "with the positions of the first group.",
                partial(_norms_by_layer, report, first),
            ),
            Drawing(
                "activations",
                "Absolute activations by size",
                "Every patch's absolute activations sorted, the largest first: the first three, "
                "those that 1, 10 and 25 % reach, mean, standard deviation and median; averaged "
                "over positions, frames and clips.",
                partial(_activation_bars, report, first, layers),
            ),
        ],
        tables=[
            Table(
                "activations",
                "Absolute activations of a patch",
                "Averaged over the positions of the group, frames and clips.",
                statistics,
            ),
            Table(
                "channels",
                f"Channels in which {first} are largest",
                "Mean absolute activation of the channel over positions, frames and clips.",
                channels,
            ),
            Table(
                "norms",
                "Norms along the layers",
                "Lowest and highest: of a position in the group.",
                norms,
            ),
        ],
    )


def _norms_by_layer(report: ActivationReport, first: str, theme: Theme) -> Figure:
    """Norms of both groups over the layers, and the positions of the first group."""
    figure, (curves, place) = new_figure((10.8, 4.2), theme, columns=2)
    for group, name, colour in (
        (report.sinks, first, theme.series[1]),
        (report.others, "other patches", theme.series[0]),
    ):
        layers = np.arange(len(group.norms))
        low, high = group.low.numpy(), group.high.numpy()
        curves.fill_between(layers, low, high, color=colour, alpha=0.22, linewidth=0)
        style: dict[str, Any] = {"color": colour, "linewidth": 1.8, "marker": "o", "markersize": 4}
        known = f"{name}: {group.positions} position(s)"
        curves.plot(layers, group.norms.numpy(), label=known, **style)
    curves.set_yscale("log")
    plain_log(curves.yaxis)
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = "Norms along the layers; band: all positions"
    label(curves, theme, title, "layer (0: embeddings)", "norm of a patch")
    legend(curves, theme, loc="best")
    height, width = report.ranks.grid
    ranks = 100 * np.array(report.ranks.rank_mean).reshape(height, width) / (height * width)
    heat_map(
        figure,
        place,
        ranks,
        theme,
        title=f"Where: {first}",
        scale="mean rank by attn (% of all positions)",
        colours="viridis_r",
    )
    mark(place, report.chosen[:20], width)
    return figure


def _activation_bars(
    report: ActivationReport, first: str, layers: Sequence[int], theme: Theme
) -> Figure:
    """Activation statistics of both groups as bars, one panel per layer."""
    figure, panels = new_figure((10.8, 0.5 + 3.3 * len(layers)), theme, rows=len(layers))
    places = np.arange(len(STATISTICS))
    for layer, panel in zip(layers, panels, strict=True):
        pairs = (report.sinks.statistics[layer], report.others.statistics[layer])
        for shift, values, name, colour in (
            (-0.2, pairs[0], first, theme.series[1]),
            (0.2, pairs[1], "other patches", theme.series[0]),
        ):
            bars = panel.bar(places + shift, values, width=0.38, color=colour, label=name)
            panel.bar_label(bars, fmt="{:.3g}", fontsize=7.5, color=theme.foreground)
        if max(map(max, pairs)) > _WIDE * max(1e-9, min(map(min, pairs))):
            panel.set_yscale("log")
            plain_log(panel.yaxis)
        panel.margins(y=0.12)
        panel.set_xticks(places, STATISTICS)
        label(panel, theme, f"Layer {layer}", y="absolute activation", grid="y")
        legend(panel, theme, loc="upper right")
    return figure
