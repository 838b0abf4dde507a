"""`tango analyze clusters`: fragmentation of token clusters with and without ST-RoPE."""

from __future__ import annotations

import colorsys
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from jobs.analysis.clips import JobClips
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.clusters import NUM_NEIGHBORS, cluster_labels, fragmentation
from tango_core.errors import UserError

MOST_FRAMES = 8
# Names of the compared features in the table, by whether they are rotated.
_FEATURES = {False: "unit", True: "ST-RoPE"}
_TITLES = {"unit": "without ST-RoPE", "ST-RoPE": "with ST-RoPE"}


# The first window of a clip: (t, h, w, 3) uint8 frames, (t,) seconds, and feature -> (t, H, W)
# clusters.
_Example = tuple[npt.NDArray[np.uint8], list[float], dict[str, npt.NDArray[np.int64]]]


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
    drawn: dict[str, _Example] = {}
    for row, features in clips.features(frozenset()):
        first: dict[str, npt.NDArray[np.int64]] = {}
        try:
            for start in range(0, len(features.tokens), window):
                for rotated, name in _FEATURES.items():
                    frames = slice(start, start + window)
                    labels = cluster_labels(features, frames, share, rotated=rotated)
                    pieces, largest = fragmentation(labels)
                    found = {"pieces": pieces.numpy(), "largest": largest.numpy()}
                    parts.append(pd.DataFrame(found).assign(clip=row.video_id, features=name))
                    first.setdefault(name, labels.numpy())
        except UserError as error:
            raise RecipeError(f"{row.video_id}: {error}") from error
        if len(drawn) < examples and (frames_of_clip := clips.frames(row)) is not None:
            # The first frame of every temporal position.
            step = max(1, round(len(frames_of_clip.pixels) / len(features.tokens)))
            number = len(first["unit"])
            pixels = frames_of_clip.pixels[::step][:number]
            drawn[row.video_id] = pixels, features.timestamps[:number].tolist(), first
    return _page(pd.concat(parts), drawn, share, window)


def _page(clusters: pd.DataFrame, examples: dict[str, _Example], share: float, window: int) -> Page:
    clusters["connected"] = clusters["pieces"] == 1
    every = clusters.assign(clip="all")
    table = (
        pd.concat([every, clusters])
        .groupby(["clip", "features"], sort=False)
        .agg(
            clusters=("pieces", "size"),
            pieces=("pieces", "mean"),
            connected=("connected", "mean"),
            largest=("largest", "mean"),
        )
    )
    unit, rotated = (table.xs(name, level="features") for name in _FEATURES.values())
    fewer = int((rotated["pieces"] < unit["pieces"]).drop("all").sum())
    bare, with_rope = unit.loc["all"], rotated.loc["all"]
    percent = 100 * table[["connected", "largest"]]
    table = table[["clusters", "pieces"]].assign(
        **{"connected %": percent["connected"], "in largest %": percent["largest"]}
    )
    formats = {"pieces": ".3f", "connected %": ".1f", "in largest %": ".1f"}
    maps = {f"maps_{number}": clip for number, clip in enumerate(examples.values(), start=1)}
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
        figures={name: partial(_cluster_maps, clip) for name, clip in maps.items()},
        tables={"fragmentation": as_text(table.reset_index(), **formats)},
        titles=dict(zip(maps, (f"Clusters of {name}" for name in examples), strict=True)),
    )


def _cluster_maps(clip: _Example, theme: Theme) -> Figure:
    """Rows of frames, clusters without ST-RoPE and clusters with it; one colour per cluster."""
    pixels, seconds, labels = clip
    number = min(len(pixels), MOST_FRAMES)
    shown = np.linspace(0, len(pixels) - 1, number).round().astype(int).tolist()
    ratio = pixels.shape[1] / pixels.shape[2]
    size = max(5.0, 1.55 * number + 0.6), 3 * (1.5 * ratio + 0.22) + 0.3
    figure, panels = new_figure(size, theme, rows=3, columns=number)
    pictures: dict[str, npt.NDArray[Any]] = {
        "frame": pixels,
        **{_TITLES[name]: _coloured(own) for name, own in labels.items()},
    }
    for row, (name, maps) in enumerate(pictures.items()):
        for column, frame in enumerate(shown):
            panel = panels[row * number + column]
            panel.imshow(maps[frame], interpolation="nearest", aspect="auto")
            panel.set_box_aspect(ratio)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.spines[:].set_visible(False)
            if row == 0:
                panel.set_title(f"{seconds[frame]:.1f} s", fontsize=9, color=theme.foreground)
            if column == 0:
                panel.set_ylabel(name, fontsize=9.5)
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
