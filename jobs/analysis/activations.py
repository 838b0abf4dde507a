"""`tango analyze activations`: what sinks carry through a tower beside all other patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from jobs.analysis.clips import JobClips
from jobs.analysis.command import Places, finish, subtitle
from jobs.analysis.figures.activations import activation_bars, group_names, norms_by_layer
from jobs.analysis.page import Drawing, Page, Table
from jobs.analysis.sinks import few_clips
from jobs.config.recipe import Job, RecipeError
from tango_core.analysis.activations import STATISTICS, ActivationReport, ActivationStudy
from tango_core.analysis.sinks import SinkRule
from tango_core.models.towers.trace import raise_if_no_layer


@dataclass(frozen=True)
class ActivationOptions:
    """What to look at.

    Attributes:
        layers: Layers of the tower, 0 for the embeddings; empty for the last one that the model
            runs.
        rule: When a patch is a sink.
    """

    layers: Sequence[int] = ()
    rule: SinkRule = field(default_factory=SinkRule)


def analyze_activations(
    job: Job, options: ActivationOptions, places: Places, console: Console
) -> int:
    """Describe activations and norms of the patches of all clips of a recipe.

    Clips are decoded and go through the tower: the feature store holds no layers.

    Args:
        job: Its benchmarks, model, limit and shard are used; its methods are not.
        options: Layers and rule.
        places: Where to write.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If a layer does not exist, the encoder shows none, no clip could be decoded, or
            clips differ in their grid.
    """
    clips = JobClips(job, places.cache_root)
    num_layers = clips.encoder.num_layers
    layers = tuple(options.layers)
    try:
        if num_layers is not None:
            layers = layers or (num_layers,)
            raise_if_no_layer(layers, num_layers, clips.model.name)
        study = ActivationStudy(layers)
        for row, frames in clips.decoded():
            try:
                study.add(clips.encoder.trace(frames, study.layers))
            except ValueError as error:
                raise ValueError(f"{row.video_id}: {error}") from error
        clips.raise_if_none(study.ranks.num_clips)
        report = study.report(options.rule)
    except ValueError as error:
        raise RecipeError(" ".join(str(error).split())) from error
    page = _page(report, study.layers, subtitle(clips, study.ranks.num_clips))
    return finish(page, job, clips, places.folder, console)


def _page(report: ActivationReport, layers: Sequence[int], about: str) -> Page:
    """What was found."""
    first, second = group_names(report)
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
            f"{second} {other[0]:.3g}; medians {one[-1]:.3g} and {other[-1]:.3g}; norms "
            f"{float(report.sinks.norms[layer]):.3g} and {float(report.others.norms[layer]):.3g}"
        )
    notes = few_clips(report.ranks)
    if not report.are_sinks:
        notes.insert(
            0,
            f"no patch is a sink by the rule (mean rank up to {report.ranks.rule.max_mean_rank:g}, "
            f"spread up to {report.ranks.rule.max_spread:g} of all positions); the "
            f"{len(report.chosen)} most attended patches stand in their place",
        )
    return Page(
        title="Activations of sinks and of other patches",
        subtitle=about,
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
                partial(norms_by_layer, report),
            ),
            Drawing(
                "activations",
                "Absolute activations by size",
                "Every patch's absolute activations sorted, the largest first: the first three, "
                "those that 1, 10 and 25 % reach, mean, standard deviation and median; averaged "
                "over positions, frames and clips.",
                partial(activation_bars, report, layers),
            ),
        ],
        tables=[_statistics(report, layers), _channels(report, layers), _norms(report)],
    )


def _statistics(report: ActivationReport, layers: Sequence[int]) -> Table:
    """Both groups at every layer that was asked for."""
    pairs = zip(group_names(report), (report.sinks, report.others), strict=True)
    named = list(pairs)
    return Table(
        "activations",
        "Absolute activations of a patch",
        "Averaged over the positions of the group, frames and clips.",
        ["layer", "group", "positions", *STATISTICS],
        [
            [
                str(layer),
                name,
                str(group.positions),
                *(f"{value:.4g}" for value in group.statistics[layer]),
            ]
            for layer in layers
            for name, group in named
        ],
    )


def _channels(report: ActivationReport, layers: Sequence[int]) -> Table:
    """The channels in which the first group is largest."""
    return Table(
        "channels",
        f"Channels in which {group_names(report)[0]} are largest",
        "Mean absolute activation of the channel over positions, frames and clips.",
        ["layer", "place", "channel", "mean absolute activation"],
        [
            [str(layer), str(place), str(channel), f"{value:.4g}"]
            for layer in layers
            for place, (channel, value) in enumerate(report.top_channels[layer], start=1)
        ],
    )


def _norms(report: ActivationReport) -> Table:
    """Norms of both groups after every layer."""
    return Table(
        "norms",
        "Norms along the layers",
        "Lowest and highest: of a position in the group.",
        ["layer", "group", "mean", "lowest", "highest"],
        [
            [
                str(layer),
                name,
                *(f"{float(part[layer]):.4g}" for part in (group.norms, group.low, group.high)),
            ]
            for layer in range(len(report.sinks.norms))
            for name, group in zip(group_names(report), (report.sinks, report.others), strict=True)
        ],
    )
