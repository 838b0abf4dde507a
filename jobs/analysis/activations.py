"""`tango analyze activations`: compare activations of attention sinks and of other patches."""

from __future__ import annotations

from collections.abc import Sequence
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
from tango_core.analysis.sinks import STATISTICS, ActivationStudy, SinkRule
from tango_core.models.towers.trace import raise_if_no_layer

_ENDS = ["mean", "lowest", "highest"]


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
    study = ActivationStudy(layers)
    clips.with_frames(lambda _, frames: study.add(clips.encoder.trace(frames, study.layers)))
    report = study.report(rule)
    ranks, chosen = report.ranks, [*report.chosen]
    others = np.setdiff1d(np.arange(len(ranks.rank_mean)), chosen).tolist()
    first = "sinks" if ranks.sinks else "most attended (no sinks)"
    statistics, norms = [], []
    for name, group in {first: chosen, "other patches": others}.items():
        means = report.statistics[:, group].mean(dim=1)
        for layer, values in zip(study.layers, means.tolist(), strict=True):
            statistics.append((layer, name, len(group), *values))
        own = report.norms[:, group]
        ends = (own.mean(dim=1).tolist(), own.amin(dim=1).tolist(), own.amax(dim=1).tolist())
        norms += [(layer, name, *values) for layer, values in enumerate(zip(*ends, strict=True))]
    by_layer = pd.DataFrame(statistics, columns=["layer", "group", "positions", *STATISTICS])
    by_layer = by_layer.sort_values("layer", kind="stable")
    curves = pd.DataFrame(norms, columns=["layer", "group", *_ENDS])
    height, width = ranks.grid
    listed = ", ".join(f"({p // width}, {p % width})" for p in chosen[:12])
    listed += ", ..." * (len(chosen) > 12)
    findings = [f"{first}: {len(chosen)} of {height} x {width} patches, at (row, column) {listed}"]
    notes = few_clips(ranks)
    if not ranks.sinks:
        notes.insert(
            0,
            f"no patch is a sink by the rule (mean rank up to {ranks.rule.max_mean_rank:g}, "
            f"spread up to {ranks.rule.max_spread:g} of all positions); the {len(chosen)} most "
            "attended patches are used instead",
        )
    sizes = {first: len(chosen), "other patches": len(others)}
    return Page(
        "activations",
        findings,
        notes,
        figures={"norms": partial(_norms_by_layer, curves, sizes)},
        tables={
            "activations": as_text(by_layer, dict.fromkeys(STATISTICS, ".4g")),
            "norms": as_text(
                curves.sort_values("layer", kind="stable"), dict.fromkeys(_ENDS, ".4g")
            ),
        },
    )


def _norms_by_layer(norms: pd.DataFrame, sizes: dict[str, int], theme: Theme) -> Figure:
    """Norms of both groups over the layers."""
    figure, (panel,) = new_figure((7.2, 4.2), theme)
    for (name, size), colour in zip(sizes.items(), theme.series[1::-1], strict=True):
        own = norms[norms["group"] == name]
        ends = own["layer"], own["lowest"], own["highest"]
        panel.fill_between(*ends, color=colour, alpha=0.22, linewidth=0)
        known = f"{name}: {size} position(s)"
        panel.plot(own["layer"], own["mean"], "o-", color=colour, markersize=4, label=known)
    plain_log(panel)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = "Norms along the layers; band: all positions"
    label(panel, theme, title, "layer (0: embeddings)", "norm of a patch")
    legend(panel, theme, "best")
    return figure
