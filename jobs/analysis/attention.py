"""`tango analyze attention` and `sinks`: distribution of attention, and positions of sinks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jobs.analysis.clips import JobClips
from jobs.analysis.figures import SIGNAL_NAMES, Map, dashed, label, legend, map_figure, plain_log
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.theme import Theme, new_figure
from pipeline.clips import Clip
from pipeline.storage import Storage
from tango_core.analysis.sinks import (
    BAND,
    FEWEST_CLIPS,
    SignalProfile,
    SignalReport,
    SinkCalibration,
    SinkReport,
    SinkRule,
)
from tango_core.types import VisualFeatures

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

    def add(clip: Clip, features: VisualFeatures) -> None:
        for name, profile in profiles.items():
            profile.add(getattr(features, name), features.grid)

    clips.with_features(frozenset(profiles), add)
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


def _sorted_signals(reports: Mapping[str, SignalReport], theme: Theme) -> Figure:
    """Left: sorted signals with a band over clips; right: share of the signal in the top ranks."""
    figure, (curves, parts) = new_figure((10.6, 4.0), theme, columns=2)
    for (name, report), colour in zip(reports.items(), theme.series, strict=False):
        by_rank, total = report.by_rank.numpy(), len(report.by_rank)
        ranks = np.arange(1, total + 1)
        low, high = report.low.numpy(), report.high.numpy()
        curves.fill_between(ranks, low, high, color=colour, alpha=0.25, linewidth=0)
        curves.plot(ranks, by_rank, color=colour, linewidth=1.8, label=name)
        held = np.append(0, by_rank.cumsum()) / total
        shares = np.arange(total + 1) / total
        parts.plot(100 * shares, 100 * held, color=colour, linewidth=1.8, label=name)
    curves.axhline(1, **dashed(theme))
    plain_log(curves)
    title = f"Sorted; band: {_BAND} % of the clips"
    label(curves, theme, title, "rank within the frame", "signal, 1 = mean of the frame")
    parts.plot([0, 100], [0, 100], **dashed(theme))
    parts.set_xlim(0, 100)
    parts.set_ylim(0, 102)
    x = "tokens of a frame, the highest first (%)"
    label(parts, theme, "What they hold together", x, "part of the frame's signal (%)")
    legend(parts, theme, "lower right")
    return figure


def _mean_maps(reports: Mapping[str, SignalReport], theme: Theme) -> Figure:
    """Map of every signal's mean, with the highest positions numbered."""
    maps = []
    for name, report in reports.items():
        order = report.mean_map.sort(descending=True, stable=True).indices.tolist()
        values = report.mean_map.view(report.ranks.grid).numpy()
        maps.append(Map(f"{name}: mean over frames", values, order[:_NUMBERED]))
    return map_figure([maps], "signal, 1 = mean of the frame", theme)


def _rank_maps(reports: Sequence[SinkReport], theme: Theme) -> Figure:
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
    return map_figure(rows, "% of all positions", theme)


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
    clips.with_features(
        frozenset({ranked}),
        lambda _, features: ranks.add(getattr(features, ranked), features.grid),
    )
    report = ranks.report(rule)
    model = {"name": clips.model.name, "digest": clips.model.digest}
    text = json.dumps(report.to_json(model), indent=2)
    Storage.at(output.absolute().parent).write(output.name, f"{text}\n".encode())
    table = _positions(report).sort_values("mean rank", kind="stable")
    table["sink"] = np.where(table["position"].isin(report.sinks), "sink", "")
    return Page(
        "sinks",
        findings=_sinks_in_words(report, output),
        notes=few_clips(report),
        figures={"ranks": partial(_rank_maps, [report])},
        tables={"positions": as_text(table, _FORMATS)},
        values={"signal": SIGNAL_NAMES[report.score]},
    )


def _sinks_in_words(report: SinkReport, path: Path) -> list[str]:
    """Format the report as lines of text."""
    height, width = report.grid
    total = height * width
    lines = [
        f"{report.num_frames} frames of {report.num_clips} clips, {height} x {width} positions "
        f"ranked by {report.score}",
        f"{len(report.sinks)} sink(s): mean rank up to {report.rule.max_mean_rank * total:.1f} of "
        f"{total}, spread up to {report.rule.max_spread * total:.1f}",
    ]
    lines += [
        f"  {position:4d} = row {position // width}, column {position % width}: rank "
        f"{report.rank_mean[position]:.1f} ± {report.rank_spread[position]:.1f}"
        for position in report.sinks
    ]
    use = f"to use them: --set model.sinks={path}"
    none = f"no sinks found; with {path} Tango treats all positions alike"
    return [*lines, use if report.sinks else none]


def few_clips(report: SinkReport) -> list[str]:
    """A warning if there are too few clips to find sinks reliably."""
    if report.num_clips >= FEWEST_CLIPS:
        return []
    return [
        f"{report.num_clips} clip(s) are few: a position with the same content in all of them is "
        f"taken for a sink; use at least {FEWEST_CLIPS} different clips"
    ]
