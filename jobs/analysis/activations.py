"""`tango analyze activations`: compare activations of attention sinks and of other patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jobs.analysis.attention import few_clips
from jobs.analysis.clips import JobClips
from jobs.analysis.figures import label, legend, plain_log
from jobs.analysis.page import Page, as_text
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.activations import (
    STATISTICS,
    ActivationReport,
    ActivationStudy,
    GroupActivations,
)
from tango_core.analysis.sinks import SinkRule
from tango_core.errors import InputError, UserError
from tango_core.models.towers.trace import raise_if_no_layer

Groups = Mapping[str, GroupActivations]


def analyze_activations(
    clips: JobClips, *, layers: Sequence[int] = (), rule: SinkRule | None = None
) -> Page:
    """Compare activations and norms of sinks and other patches over all clips of a recipe.

    Clips are decoded and encoded, because the feature store does not hold layer outputs.

    Args:
        clips: The clips of a recipe.
        layers: Layers of the tower, 0 for the embeddings; empty for the last layer that the model
            uses.
        rule: Criterion for sinks; `None` for the default.

    Raises:
        UserError: If a layer does not exist, the encoder does not expose layers, no clip could be
            decoded, or clips have different grids.
    """
    num_layers = clips.encoder.num_layers
    if num_layers is not None:
        layers = layers or (num_layers,)
        raise_if_no_layer(layers, num_layers, clips.model.name)
    study = ActivationStudy(tuple(layers))
    for row, frames in clips.decoded():
        try:
            study.add(clips.encoder.trace(frames, study.layers))
        except UserError as error:
            raise InputError(f"{row.video_id}: {error}") from error
    report = study.report(rule or SinkRule())
    return _page(report, study.layers)


def _page(report: ActivationReport, layers: Sequence[int]) -> Page:
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
    statistics = pd.DataFrame(
        [
            (layer, name, group.positions, *group.statistics[layer])
            for layer in layers
            for name, group in groups.items()
        ],
        columns=["layer", "group", "positions", *STATISTICS],
    )
    norms = pd.DataFrame(
        [
            (layer, name, *(float(part[layer]) for part in (group.norms, group.low, group.high)))
            for layer in range(len(report.sinks.norms))
            for name, group in groups.items()
        ],
        columns=["layer", "group", "mean", "lowest", "highest"],
    )
    return Page(
        "activations",
        findings,
        notes,
        figures={"norms": partial(_norms_by_layer, groups)},
        tables={
            "activations": as_text(statistics, **dict.fromkeys(STATISTICS, ".4g")),
            "norms": as_text(norms, mean=".4g", lowest=".4g", highest=".4g"),
        },
    )


def _norms_by_layer(groups: Groups, theme: Theme) -> Figure:
    """Norms of both groups over the layers."""
    figure, (curves,) = new_figure((7.2, 4.2), theme)
    for (name, group), colour in zip(groups.items(), theme.series[1::-1], strict=True):
        layers = np.arange(len(group.norms))
        low, high = group.low.numpy(), group.high.numpy()
        curves.fill_between(layers, low, high, color=colour, alpha=0.22, linewidth=0)
        known = f"{name}: {group.positions} position(s)"
        curves.plot(layers, group.norms.numpy(), "o-", color=colour, markersize=4, label=known)
    plain_log(curves)
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = "Norms along the layers; band: all positions"
    label(curves, theme, title, "layer (0: embeddings)", "norm of a patch")
    legend(curves, theme, loc="best")
    return figure
