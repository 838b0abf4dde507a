"""`tango analyze clusters`: fragmentation of token clusters with and without ST-RoPE."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from rich.console import Console

from jobs.analysis.clips import JobClips
from jobs.analysis.figures import label, legend, without_frame
from jobs.analysis.page import Drawing, Page, Table, finish
from jobs.config.recipe import Job, RecipeError
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.clusters import (
    NO_CLUSTERS,
    NUM_NEIGHBORS,
    Fragmentation,
    cluster_labels,
    fragmentation,
)
from tango_core.errors import InputError, UserError
from tango_core.types import VideoFrames, VisualFeatures

MOST_FRAMES = 8
_MOST_PIECES = 10


@dataclass(frozen=True, eq=False)
class ClusteredClip:
    """A window of consecutive frames of a clip with its clusters.

    Attributes:
        name: Name of the clip.
        pixels: (t, h, w, 3) uint8.
        seconds: (t,) times of the frames.
        bare: (t, H, W) clusters of unit features.
        rotated: (t, H, W) clusters with ST-RoPE.
    """

    name: str
    pixels: npt.NDArray[np.uint8]
    seconds: Sequence[float]
    bare: npt.NDArray[np.int64]
    rotated: npt.NDArray[np.int64]


def analyze_clusters(
    job: Job,
    folder: Path,
    cache_root: str,
    console: Console,
    *,
    share: float = 0.1,
    window: int = 8,
    examples: int = 2,
) -> int:
    """Cluster the tokens of all clips with and without ST-RoPE, and count connected pieces.

    Args:
        job: Its benchmarks, model, limit, shard and cache are used; its methods are not.
        folder: Receives the page.
        cache_root: Directory or URL of the caches.
        console: Where to print.
        share: Clusters per token, in (0, 1].
        window: Number of consecutive temporal positions that are clustered together.
        examples: Number of clips whose first window is drawn.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        ValueError: If the share gives no clusters.
        RecipeError: If no clip could be decoded, or the tokens cannot be rotated.
    """
    if not 0 < share <= 1:
        raise InputError(f"--share must be in (0, 1], got {share:g}")
    clips = JobClips(job, cache_root)
    total = {False: NO_CLUSTERS, True: NO_CLUSTERS}
    per_clip: list[tuple[str, Fragmentation, Fragmentation]] = []
    drawn: list[ClusteredClip] = []
    for row, features in clips.features(frozenset()):
        own = {False: NO_CLUSTERS, True: NO_CLUSTERS}
        first: dict[bool, torch.Tensor] = {}
        try:
            for start in range(0, len(features.tokens), window):
                frames = slice(start, start + window)
                for rotated in own:
                    labels = cluster_labels(features, frames, share, rotated=rotated)
                    own[rotated] += fragmentation(labels)
                    first.setdefault(rotated, labels)
        except UserError as error:
            raise RecipeError(f"{row.video_id}: {error}") from error
        per_clip.append((row.video_id, own[False], own[True]))
        total = {rotated: total[rotated] + own[rotated] for rotated in total}
        if len(drawn) < examples and (pixels := clips.frames(row)) is not None:
            drawn.append(_example(row.video_id, features, pixels, first))
    subtitle = clips.subtitle(len(per_clip))
    bare, rotated_total = total[False], total[True]
    page = _page(per_clip, bare, rotated_total, drawn, share, window, subtitle)
    return finish(page, clips, folder, console)


def _example(
    name: str, features: VisualFeatures, frames: VideoFrames, labels: dict[bool, torch.Tensor]
) -> ClusteredClip:
    """The first window of a clip, with the first frame of every temporal position."""
    number = len(labels[False])
    step = max(1, round(len(frames.pixels) / len(features.tokens)))
    shown = frames.pixels[::step][:number]
    return ClusteredClip(
        name=name,
        pixels=shown,
        seconds=features.timestamps[:number].tolist(),
        bare=labels[False].numpy()[: len(shown)],
        rotated=labels[True].numpy()[: len(shown)],
    )


def _page(
    per_clip: list[tuple[str, Fragmentation, Fragmentation]],
    bare: Fragmentation,
    rotated: Fragmentation,
    examples: list[ClusteredClip],
    share: float,
    window: int,
    subtitle: str,
) -> Page:
    better = sum(two.mean_pieces < one.mean_pieces for _, one, two in per_clip)
    rows = [
        {
            "clip": name,
            "features": features,
            "clusters": str(found.num_clusters),
            "pieces": f"{found.mean_pieces:.3f}",
            "connected %": f"{100 * found.connected:.1f}",
            "in largest %": f"{100 * found.mean_in_largest:.1f}",
        }
        for name, *both in [("all", bare, rotated), *per_clip]
        for features, found in zip(("unit", "ST-RoPE"), both, strict=True)
    ]
    return Page(
        title="Clusters with and without ST-RoPE",
        subtitle=subtitle,
        findings=[
            f"pieces per cluster: {bare.mean_pieces:.2f} without ST-RoPE, "
            f"{rotated.mean_pieces:.2f} with it",
            f"clusters in one piece: {100 * bare.connected:.0f} % without ST-RoPE, "
            f"{100 * rotated.connected:.0f} % with it",
            f"fewer pieces with ST-RoPE in {better} of {len(per_clip)} clip(s)",
        ],
        notes=[
            f"one cluster per {1 / share:g} tokens, density peaks over {NUM_NEIGHBORS} neighbours "
            f"as in Tango's merging, on all tokens of {window} consecutive temporal positions"
        ],
        drawings=[
            Drawing(
                "fragmentation",
                "Fragmentation",
                "Connected pieces of every cluster; tokens touch in rows and columns of a frame, "
                "and at one position of consecutive frames. Left: share of the clusters by their "
                "number of pieces. Right: share of every cluster's tokens that are in its largest "
                "piece.",
                partial(_fragmentation_figure, bare, rotated),
            ),
            *(
                Drawing(
                    f"maps_{number}",
                    f"Clusters of {clip.name}",
                    "First window of the clip; one colour per cluster, each row with its own "
                    "colours.",
                    partial(_cluster_maps, clip),
                )
                for number, clip in enumerate(examples, start=1)
            ),
        ],
        tables=[
            Table(
                "fragmentation",
                "Pieces of clusters by clip",
                "Connected: share of the clusters in one piece. In largest: share of a cluster's "
                "tokens in its largest piece.",
                rows,
                shown=22,
            )
        ],
    )


def _cluster_maps(clip: ClusteredClip, theme: Theme) -> Figure:
    """Rows of frames, clusters without ST-RoPE and clusters with it; one colour per cluster."""
    number = min(len(clip.pixels), MOST_FRAMES)
    shown = np.linspace(0, len(clip.pixels) - 1, number).round().astype(int).tolist()
    ratio = clip.pixels.shape[1] / clip.pixels.shape[2]
    size = max(5.0, 1.55 * number + 0.6), 3 * (1.5 * ratio + 0.22) + 0.3
    figure, panels = new_figure(size, theme, rows=3, columns=number)
    pictures: dict[str, npt.NDArray[Any]] = {
        "frame": clip.pixels,
        "without ST-RoPE": _coloured(clip.bare),
        "with ST-RoPE": _coloured(clip.rotated),
    }
    for row, (name, maps) in enumerate(pictures.items()):
        for column, frame in enumerate(shown):
            panel = panels[row * number + column]
            panel.imshow(maps[frame], interpolation="nearest", aspect="auto")
            panel.set_box_aspect(ratio)
            panel.set_xticks([])
            panel.set_yticks([])
            without_frame(panel)
            if row == 0:
                panel.set_title(f"{clip.seconds[frame]:.1f} s", fontsize=9, color=theme.foreground)
            if column == 0:
                panel.set_ylabel(name, fontsize=9.5)
    return figure


def _fragmentation_figure(bare: Fragmentation, rotated: Fragmentation, theme: Theme) -> Figure:
    """Pieces per cluster, and share of tokens in the largest piece, without and with ST-RoPE."""
    figure, (counts, parts) = new_figure((10.8, 3.9), theme, columns=2)
    places = np.arange(1, _MOST_PIECES + 1)
    for shift, name, found, colour in (
        (-0.2, "without ST-RoPE", bare, theme.series[1]),
        (0.2, "with ST-RoPE", rotated, theme.series[0]),
    ):
        pieces = np.minimum(np.array(found.pieces), _MOST_PIECES)
        shares = [100 * float((pieces == number).mean()) for number in places]
        known = f"{name}: {found.mean_pieces:.2f} pieces on average"
        counts.bar(places + shift, shares, width=0.38, color=colour, label=known)
        inside = np.sort(np.array(found.in_largest))[::-1]
        along = 100 * (np.arange(len(inside)) + 1) / len(inside)
        parts.plot(along, 100 * inside, color=colour, linewidth=1.8, label=name)
    counts.set_xticks(places, [*map(str, places[:-1]), f"{_MOST_PIECES}+"])
    x = "connected pieces of a cluster"
    label(counts, theme, "Pieces per cluster", x, "clusters (%)", grid="y")
    parts.set_ylim(0, 103)
    parts.set_xlim(0, 100)
    title, x = "How much of a cluster is in one piece", "clusters, the most connected first (%)"
    label(parts, theme, title, x, "tokens in the largest piece (%)", grid="y")
    legend(counts, theme, loc="upper right")
    legend(parts, theme, loc="lower left")
    return figure


def _coloured(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """(t, H, W, 3) colours of clusters, spaced by the golden angle to be distinguishable."""
    order = np.random.default_rng(0).permutation(int(labels.max()) + 1)
    saturations, values = (0.85, 0.5, 0.65), (0.95, 0.8, 0.6)
    colours = [
        colorsys.hsv_to_rgb((one * 0.618034) % 1, saturations[one % 3], values[one // 3 % 3])
        for one in order
    ]
    return np.asarray(np.array(colours)[labels])
