"""`tango analyze clusters`: clusters of tokens with and without ST-RoPE, and their pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from jobs.analysis.clips import JobClips
from jobs.analysis.command import Places, finish, subtitle
from jobs.analysis.figures.clusters import ClusteredClip, cluster_maps, fragmentation_figure
from jobs.analysis.page import Drawing, Page, Table
from jobs.config.recipe import Job, RecipeError
from tango_core.analysis.clusters import (
    NO_CLUSTERS,
    NUM_NEIGHBORS,
    Fragmentation,
    cluster_labels,
    fragmentation,
)
from tango_core.types import VideoFrames, VisualFeatures


@dataclass(frozen=True)
class ClusterOptions:
    """How to cluster, and what to draw.

    Attributes:
        share: Clusters per token, in (0, 1].
        window: Consecutive temporal positions that are clustered together.
        examples: Clips whose first window is drawn.
    """

    share: float = 0.1
    window: int = 8
    examples: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers that make no clusters."""
        if not 0 < self.share <= 1:
            raise ValueError(f"--share must be in (0, 1], got {self.share:g}")


def analyze_clusters(job: Job, options: ClusterOptions, places: Places, console: Console) -> int:
    """Cluster the tokens of all clips of a recipe twice, and count the pieces of the clusters.

    Args:
        job: Its benchmarks, model, limit, shard and cache are used; its methods are not.
        options: Sizes.
        places: Where to read and write.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If no clip could be decoded, or the tokens cannot be rotated.
    """
    clips = JobClips(job, places.cache_root)
    total = {False: NO_CLUSTERS, True: NO_CLUSTERS}
    per_clip: list[tuple[str, Fragmentation, Fragmentation]] = []
    examples: list[ClusteredClip] = []
    for row, features in clips.features(frozenset()):
        own = {False: NO_CLUSTERS, True: NO_CLUSTERS}
        first: dict[bool, torch.Tensor] = {}
        try:
            for start in range(0, len(features.tokens), options.window):
                frames = slice(start, start + options.window)
                for rotated in own:
                    labels = cluster_labels(features, frames, options.share, rotated=rotated)
                    own[rotated] += fragmentation(labels)
                    first.setdefault(rotated, labels)
        except ValueError as error:
            raise RecipeError(f"{row.video_id}: {error}") from error
        per_clip.append((row.video_id, own[False], own[True]))
        total = {rotated: total[rotated] + own[rotated] for rotated in total}
        if len(examples) < options.examples and (pixels := clips.frames(row)) is not None:
            examples.append(_example(row.video_id, features, pixels, first))
    clips.raise_if_none(len(per_clip))
    page = _page(per_clip, total, examples, options, subtitle(clips, len(per_clip)))
    return finish(page, job, clips, places.folder, console)


def _example(
    name: str, features: VisualFeatures, frames: VideoFrames, labels: dict[bool, torch.Tensor]
) -> ClusteredClip:
    """The first window of a clip; of several frames in a temporal position the first is shown."""
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
    total: dict[bool, Fragmentation],
    examples: list[ClusteredClip],
    options: ClusterOptions,
    about: str,
) -> Page:
    """What was found."""
    bare, rotated = total[False], total[True]
    better = sum(two.mean_pieces < one.mean_pieces for _, one, two in per_clip)
    drawings = [
        Drawing(
            "fragmentation",
            "Fragmentation",
            "Connected pieces of every cluster; tokens touch in rows and columns of a frame, and "
            "at one place of consecutive frames. Left: share of the clusters by their number of "
            "pieces. Right: share of every cluster's tokens that are in its largest piece.",
            partial(fragmentation_figure, bare, rotated),
        ),
        *(
            Drawing(
                f"maps_{number}",
                f"Clusters of {clip.name}",
                "First window of the clip; one colour per cluster, each row with its own colours.",
                partial(cluster_maps, clip),
            )
            for number, clip in enumerate(examples, start=1)
        ),
    ]
    return Page(
        title="Clusters with and without ST-RoPE",
        subtitle=about,
        findings=[
            f"pieces per cluster: {bare.mean_pieces:.2f} without ST-RoPE, "
            f"{rotated.mean_pieces:.2f} with it",
            f"clusters in one piece: {100 * bare.connected:.0f} % without ST-RoPE, "
            f"{100 * rotated.connected:.0f} % with it",
            f"fewer pieces with ST-RoPE in {better} of {len(per_clip)} clip(s)",
        ],
        notes=[
            f"one cluster per {1 / options.share:g} tokens, density peaks over {NUM_NEIGHBORS} "
            f"neighbours as in Tango's merging, on all tokens of {options.window} consecutive "
            "temporal positions"
        ],
        drawings=drawings,
        tables=[
            Table(
                "fragmentation",
                "Pieces of clusters by clip",
                "Connected: share of the clusters in one piece. In largest: share of a cluster's "
                "tokens in its largest piece.",
                ["clip", "features", "clusters", "pieces", "connected %", "in largest %"],
                [
                    _row(name, features, found)
                    for name, *both in [("all", bare, rotated), *per_clip]
                    for features, found in zip(("unit", "ST-RoPE"), both, strict=True)
                ],
                shown=22,
            )
        ],
    )


def _row(name: str, features: str, found: Fragmentation) -> list[str]:
    """The numbers of a clip."""
    return [
        name,
        features,
        str(found.num_clusters),
        f"{found.mean_pieces:.3f}",
        f"{100 * found.connected:.1f}",
        f"{100 * found.mean_in_largest:.1f}",
    ]
