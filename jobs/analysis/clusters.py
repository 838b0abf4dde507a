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
from jobs.report.theme import Theme, new_figure
from pipeline.clips import Clip
from tango_core.analysis.clusters import NUM_NEIGHBORS, Labels, cluster_labels, fragmentation
from tango_core.types import VisualFeatures

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

    def add(clip: Clip, features: VisualFeatures) -> None:
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

    clips.with_features(frozenset(), add)
    clusters = pd.concat(parts)
    groups = pd.concat([clusters.assign(clip="all"), clusters]).groupby(
        ["clip", "features"], sort=False
    )
    table = groups[["pieces", "connected", "largest"]].mean()
    table.insert(0, "clusters", groups.size())
    unit, rotated = (table.xs(name, level="features") for name in _FEATURES)
    fewer = int((rotated["pieces"] < unit["pieces"]).drop("all").sum())
    bare, with_rope = unit.loc["all"], rotated.loc["all"]
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


def _cluster_maps(clip: Example, theme: Theme) -> Figure:
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
        for panel, frame in zip(panels[row * number :], shown, strict=False):
            panel.imshow(maps[frame], interpolation="nearest", aspect="auto")
            panel.set_box_aspect(ratio)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if row == 0:
                panel.set_title(f"{seconds[frame]:.1f} s", fontsize=9, color=theme.foreground)
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
