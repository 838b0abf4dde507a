"""`tango analyze attention`, `sinks`, `activations` and `clusters`: what an encoder does."""

from __future__ import annotations

import colorsys
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jobs.analysis.clips import JobClips
from jobs.analysis.figures import SIGNAL_NAMES, Map, dashed, label, map_figure, plain_log
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.theme import new_figure
from pipeline.storage import Storage
from tango_core.analysis.clusters import NUM_NEIGHBORS, Labels, cluster_labels, fragmentation
from tango_core.analysis.sinks import (
    BAND,
    FEWEST_CLIPS,
    STATISTICS,
    ActivationStudy,
    SignalProfile,
    SignalReport,
    SinkCalibration,
    SinkReport,
    SinkRule,
)
from tango_core.models.towers.trace import raise_if_no_layer

_NUMBERED = 10
_BAND = " to ".join(f"{100 * end:g}" for end in BAND)
_FORMATS = {"mean signal": ".3f", "mean rank": ".2f", "spread": ".2f"}


def analyze_attention(clips: JobClips) -> Page:
    """Write the distribution and the mean map of every signal over all clips of a recipe.

    Args:
        clips: The clips of a recipe.

    Raises:
        RecipeError: If the encoder has no signal, no clip could be decoded, or clips differ in
            their grid.
    """
    profiles = {name: SignalProfile(name) for name in _signals_of(clips)}
    for _, features in clips.with_features(frozenset(profiles)):
        for name, profile in profiles.items():
            profile.add(getattr(features, name), features.grid)
    reports = {SIGNAL_NAMES[name]: profile.report() for name, profile in profiles.items()}
    findings, positions = [], []
    for name, report in reports.items():
        curve = report.by_rank
        held = curve[: max(1, round(len(curve) / 10))].sum() / len(curve)
        findings.append(
            f"{name}: the highest tenth of a frame's {len(curve)} tokens holds {100 * held:.0f} %"
        )
        own = _positions(report.ranks).assign(**{"mean signal": report.mean_map.numpy()})
        own.insert(0, "signal", name)
        positions.append(own.sort_values("mean signal", ascending=False, kind="stable"))
    return Page(
        "attention",
        findings,
        figures={
            "sorted": partial(_sorted_signals, reports),
            "mean_maps": partial(_mean_maps, reports),
            "ranks": partial(_rank_maps, [report.ranks for report in reports.values()]),
        },
        tables={"positions": as_text(pd.concat(positions), _FORMATS)},
        values={"band": _BAND},
    )


def _signals_of(clips: JobClips, wanted: str | None = None) -> list[str]:
    """The encoder's signals in display order, or only the wanted one.

    Raises:
        RecipeError: If the encoder has no signal, or lacks the wanted one.
    """
    available = [name for name in SIGNAL_NAMES if name in clips.model.provides]
    if not available or wanted not in (None, *available):
        raise RecipeError(
            f"the encoder of model {clips.model.name} does not provide "
            f"{wanted or 'saliency or attention'}; choose another model, or for saliency set "
            "model.saliency_from"
        )
    return available if wanted is None else [wanted]


def _positions(ranks: SinkReport) -> pd.DataFrame:
    """Mean and spread of the rank of every position."""
    rows, columns = np.indices(ranks.grid).reshape(2, -1)
    found = {"position": np.arange(len(rows)), "row": rows, "column": columns}
    return pd.DataFrame({**found, "mean rank": ranks.rank_mean, "spread": ranks.rank_spread})


def _sorted_signals(reports: Mapping[str, SignalReport]) -> Figure:
    """Left: sorted signals with a band over clips; right: share of the signal in the top ranks."""
    figure, (curves, parts) = new_figure((10.6, 4.0), columns=2)
    for at, (name, report) in enumerate(reports.items()):
        by_rank, total = report.by_rank.numpy(), len(report.by_rank)
        ranks = np.arange(1, total + 1)
        low, high = report.low.numpy(), report.high.numpy()
        curves.fill_between(ranks, low, high, color=f"C{at}", alpha=0.25, linewidth=0)
        curves.plot(ranks, by_rank, color=f"C{at}", linewidth=1.8, label=name)
        held = np.append(0, by_rank.cumsum()) / total
        shares = np.arange(total + 1) / total
        parts.plot(100 * shares, 100 * held, color=f"C{at}", linewidth=1.8, label=name)
    curves.axhline(1, **dashed())
    plain_log(curves)
    title = f"Sorted; band: {_BAND} % of the clips"
    label(curves, title, "rank within the frame", "signal, 1 = mean of the frame")
    parts.plot([0, 100], [0, 100], **dashed())
    parts.set_xlim(0, 100)
    parts.set_ylim(0, 102)
    x = "tokens of a frame, the highest first (%)"
    label(parts, "What they hold together", x, "part of the frame's signal (%)")
    parts.legend(fontsize=9, loc="lower right")
    return figure


def _mean_maps(reports: Mapping[str, SignalReport]) -> Figure:
    """Map of every signal's mean, with the highest positions numbered."""
    maps = []
    for name, report in reports.items():
        order = report.mean_map.sort(descending=True, stable=True).indices.tolist()
        values = report.mean_map.view(report.ranks.grid).numpy()
        maps.append(Map(f"{name}: mean over frames", values, order[:_NUMBERED]))
    return map_figure([maps], "signal, 1 = mean of the frame")


def _rank_maps(reports: Sequence[SinkReport]) -> Figure:
    """Per signal: maps of the mean rank and of its spread, with the sinks numbered."""
    rows = []
    for report in reports:
        parts = {"mean rank": report.rank_mean, "spread of it": report.rank_spread}
        shares = {
            name: 100 * np.reshape(own, report.grid) / len(own) for name, own in parts.items()
        }
        name = SIGNAL_NAMES[report.score]
        rows.append(
            [
                Map(f"{name}: {what}", values, report.sinks, colours="viridis_r")
                for what, values in shares.items()
            ]
        )
    return map_figure(rows, "% of all positions")


def analyze_sinks(
    clips: JobClips, *, output: Path, score: str | None = None, rule: SinkRule | None = None
) -> Page:
    """Find attention sinks: rank the positions in all frames of a recipe's clips.

    Args:
        clips: The clips of a recipe.
        output: File that receives the sinks.
        score: `"saliency"`, `"attention"`, or `None` for the first that the encoder provides.
        rule: Criterion for sinks; `None` for the default.

    Raises:
        RecipeError: If the encoder lacks the score or no clip could be decoded.
    """
    ranked = _signals_of(clips, score)[0]
    ranks = SinkCalibration(ranked)
    for _, features in clips.with_features(frozenset({ranked})):
        ranks.add(getattr(features, ranked), features.grid)
    report = ranks.report(rule)
    model = {"name": clips.model.name, "digest": clips.model.digest}
    text = json.dumps(report.to_json(model), indent=2)
    Storage.at(output.absolute().parent).write(output.name, f"{text}\n".encode())
    height, width = report.grid
    total = height * width
    findings = [
        f"{report.num_frames} frames of {report.num_clips} clips, {height} x {width} positions "
        f"ranked by {report.score}",
        f"{len(report.sinks)} sink(s): mean rank up to {report.rule.max_mean_rank * total:.1f} of "
        f"{total}, spread up to {report.rule.max_spread * total:.1f}",
    ]
    findings += [
        f"  {position:4d} = row {position // width}, column {position % width}: rank "
        f"{report.rank_mean[position]:.1f} ± {report.rank_spread[position]:.1f}"
        for position in report.sinks
    ]
    none = f"no sinks found; with {output} Tango treats all positions alike"
    findings.append(f"to use them: --set model.sinks={output}" if report.sinks else none)
    table = _positions(report).sort_values("mean rank", kind="stable")
    table["sink"] = np.where(table["position"].isin(report.sinks), "sink", "")
    return Page(
        "sinks",
        findings,
        _few_clips(report),
        figures={"ranks": partial(_rank_maps, [report])},
        tables={"positions": as_text(table, _FORMATS)},
        values={"signal": SIGNAL_NAMES[report.score]},
    )


def _few_clips(report: SinkReport) -> list[str]:
    """A warning if there are too few clips to find sinks reliably."""
    if report.num_clips >= FEWEST_CLIPS:
        return []
    return [
        f"{report.num_clips} clip(s) are few: a position with the same content in all of them is "
        f"taken for a sink; use at least {FEWEST_CLIPS} different clips"
    ]


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
    for _, frames in clips.with_frames():
        study.add(clips.encoder.trace(frames, study.layers))
    report = study.report(rule)
    ranks, chosen = report.ranks, [*report.chosen]
    others = np.setdiff1d(np.arange(len(ranks.rank_mean)), chosen).tolist()
    first = "sinks" if ranks.sinks else "most attended (no sinks)"
    statistics, norms = [], []
    for name, group in {first: chosen, "other patches": others}.items():
        means = pd.DataFrame(report.statistics[:, group].mean(dim=1), columns=[*STATISTICS])
        about = {"layer": study.layers, "group": name, "positions": len(group)}
        statistics.append(pd.DataFrame({**about, **means}))
        own = report.norms[:, group].numpy()
        ends = {"mean": own.mean(axis=1), "lowest": own.min(axis=1), "highest": own.max(axis=1)}
        norms.append(pd.DataFrame({"layer": np.arange(len(own)), "group": name, **ends}))
    by_layer = pd.concat(statistics).sort_values("layer", kind="stable")
    curves = pd.concat(norms)
    height, width = ranks.grid
    listed = ", ".join(f"({p // width}, {p % width})" for p in chosen[:12])
    listed += ", ..." * (len(chosen) > 12)
    findings = [f"{first}: {len(chosen)} of {height} x {width} patches, at (row, column) {listed}"]
    notes = _few_clips(ranks)
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
                curves.sort_values("layer", kind="stable"), dict.fromkeys(ends, ".4g")
            ),
        },
    )


def _norms_by_layer(norms: pd.DataFrame, sizes: dict[str, int]) -> Figure:
    """Norms of both groups over the layers."""
    figure, (panel,) = new_figure((7.2, 4.2))
    for (name, size), colour in zip(sizes.items(), ("C1", "C0"), strict=True):
        own = norms[norms["group"] == name]
        ends = own["layer"], own["lowest"], own["highest"]
        panel.fill_between(*ends, color=colour, alpha=0.22, linewidth=0)
        known = f"{name}: {size} position(s)"
        panel.plot(own["layer"], own["mean"], "o-", color=colour, markersize=4, label=known)
    plain_log(panel)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    title = "Norms along the layers; band: all positions"
    label(panel, title, "layer (0: embeddings)", "norm of a patch")
    panel.legend(fontsize=9)
    return figure


MOST_FRAMES = 8
# Names of the compared features in the table -> whether they are rotated.
_FEATURES = {"unit": False, "ST-RoPE": True}
_TITLES = {"unit": "without ST-RoPE", "ST-RoPE": "with ST-RoPE"}


Example = tuple[npt.NDArray[np.uint8], list[float], dict[str, Labels]]
"""The first window of a clip: (t, h, w, 3) frames, (t,) seconds, and clusters by kind of features.
"""


def analyze_clusters(
    clips: JobClips, *, share: float = 0.1, window: int = 8, examples: int = 2
) -> Page:
    """Cluster the tokens of all clips with and without ST-RoPE, and count connected pieces.

    Args:
        clips: The clips of a recipe.
        share: Clusters per token, in (0, 1].
        window: Number of consecutive temporal positions that are clustered together.
        examples: Number of clips whose first window is drawn.

    Raises:
        RecipeError: If no clip could be decoded, or the tokens cannot be rotated.
    """
    parts: list[pd.DataFrame] = []
    drawn: dict[str, Example] = {}
    for clip, features in clips.with_features(frozenset()):
        first: dict[str, Labels] = {}
        for start in range(0, len(features.tokens), window):
            for name, rotated in _FEATURES.items():
                frames = slice(start, start + window)
                labels = cluster_labels(features, frames, share, rotated=rotated)
                pieces, largest = fragmentation(labels)
                found = {"pieces": pieces, "connected": pieces == 1, "largest": largest}
                parts.append(pd.DataFrame(found).assign(clip=clip.video_id, features=name))
                first.setdefault(name, labels)
        if len(drawn) < examples and (decoded := clips.frames(clip)) is not None:
            # The first frame of every temporal position.
            step = max(1, round(len(decoded.pixels) / len(features.tokens)))
            times = features.timestamps[:window].tolist()
            drawn[clip.video_id] = decoded.pixels[::step][: len(times)], times, first
    clusters = pd.concat(parts)
    groups = pd.concat([clusters.assign(clip="all"), clusters]).groupby(
        ["clip", "features"], sort=False
    )
    table = groups[["pieces", "connected", "largest"]].mean()
    table.insert(0, "clusters", groups.size())
    unit, turned = (table.xs(name, level="features") for name in _FEATURES)
    fewer = int((turned["pieces"] < unit["pieces"]).drop("all").sum())
    bare, with_rope = unit.loc["all"], turned.loc["all"]
    table[["connected", "largest"]] *= 100
    table = table.rename(columns={"connected": "connected %", "largest": "in largest %"})
    formats = {"pieces": ".3f", "connected %": ".1f", "in largest %": ".1f"}
    names = {f"maps_{number}": name for number, name in enumerate(drawn, start=1)}
    return Page(
        "clusters",
        findings=[
            f"pieces per cluster: {bare['pieces']:.2f} without ST-RoPE, "
            f"{with_rope['pieces']:.2f} with it",
            f"clusters in one piece: {100 * bare['connected']:.0f} % without ST-RoPE, "
            f"{100 * with_rope['connected']:.0f} % with it",
            f"fewer pieces with ST-RoPE in {fewer} of {len(unit) - 1} clip(s)",
        ],
        notes=[
            f"one cluster per {1 / share:g} tokens, density peaks over {NUM_NEIGHBORS} neighbours "
            f"as in Tango's merging, on all tokens of {window} consecutive temporal positions"
        ],
        figures={at: partial(_cluster_maps, drawn[name]) for at, name in names.items()},
        tables={"fragmentation": as_text(table.reset_index(), formats)},
        titles={at: f"Clusters of {name}" for at, name in names.items()},
    )


def _cluster_maps(clip: Example) -> Figure:
    """Rows of frames, clusters without ST-RoPE and clusters with it; one colour per cluster."""
    pixels, seconds, labels = clip
    number = min(len(pixels), MOST_FRAMES)
    shown = np.linspace(0, len(pixels) - 1, number).round().astype(int).tolist()
    ratio = pixels.shape[1] / pixels.shape[2]
    size = max(5.0, 1.55 * number + 0.6), 3 * (1.5 * ratio + 0.22) + 0.3
    figure, panels = new_figure(size, rows=3, columns=number)
    pictures: dict[str, npt.NDArray[Any]] = {
        "frame": pixels,
        **{_TITLES[name]: _coloured(own) for name, own in labels.items()},
    }
    for row, (name, maps) in enumerate(pictures.items()):
        for panel, frame in zip(panels[row * number :], shown, strict=False):
            panel.imshow(maps[frame], interpolation="nearest", aspect="auto")
            panel.set_box_aspect(ratio)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if row == 0:
                panel.set_title(
                    f"{seconds[frame]:.1f} s", fontsize=9, weight="normal", loc="center"
                )
        panels[row * number].set_ylabel(name, fontsize=9.5)
    return figure


def _coloured(labels: Labels) -> npt.NDArray[np.float64]:
    """(t, H, W, 3) colours of clusters, spaced by the golden angle to be distinguishable."""
    order = np.random.default_rng(0).permutation(int(labels.max()) + 1)
    saturations, values = (0.85, 0.5, 0.65), (0.95, 0.8, 0.6)
    colours = [
        colorsys.hsv_to_rgb((one * 0.618034) % 1, saturations[one % 3], values[one // 3 % 3])
        for one in order
    ]
    return np.asarray(np.array(colours)[labels])
