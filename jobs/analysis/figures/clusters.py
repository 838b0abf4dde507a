"""Figures of `tango analyze clusters`: frames with their clusters, and how fragmented these are."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from jobs.analysis.figures.maps import legend, titled, without_frame
from jobs.report.theme import Theme, new_figure
from tango_core.analysis.clusters import Fragmentation

MOST_FRAMES = 8


@dataclass(frozen=True, eq=False)
class ClusteredClip:
    """A window of a clip with its clusters.

    Attributes:
        name: Of the clip.
        pixels: (t, h, w, 3) uint8.
        seconds: (t,) of the frames.
        bare: (t, H, W) clusters of unit features.
        rotated: (t, H, W) clusters with ST-RoPE.
    """

    name: str
    pixels: npt.NDArray[np.uint8]
    seconds: Sequence[float]
    bare: npt.NDArray[np.int64]
    rotated: npt.NDArray[np.int64]


def cluster_maps(clip: ClusteredClip, theme: Theme) -> Figure:
    """Frames above, clusters without ST-RoPE in the middle, with it below; one colour each."""
    shown = list(range(len(clip.pixels)))
    if len(shown) > MOST_FRAMES:
        shown = np.linspace(0, len(shown) - 1, MOST_FRAMES).round().astype(int).tolist()
    ratio = clip.pixels.shape[1] / clip.pixels.shape[2]
    width = max(5.0, 1.55 * len(shown) + 0.6)
    figure, panels = new_figure(
        (width, 3 * (1.5 * ratio + 0.22) + 0.3), theme, rows=3, columns=len(shown)
    )
    parts = ("frame", "without ST-RoPE", "with ST-RoPE")
    pictures: list[npt.NDArray[Any]] = [clip.pixels, coloured(clip.bare), coloured(clip.rotated)]
    for row, (name, maps) in enumerate(zip(parts, pictures, strict=True)):
        for column, frame in enumerate(shown):
            panel = panels[row * len(shown) + column]
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


def fragmentation_figure(bare: Fragmentation, rotated: Fragmentation, theme: Theme) -> Figure:
    """How many clusters have how many pieces, without and with ST-RoPE."""
    figure, (counts, parts) = new_figure((10.8, 3.9), theme, columns=2)
    most = 10
    places = np.arange(1, most + 1)
    named = (("without ST-RoPE", bare, theme.series[1]), ("with ST-RoPE", rotated, theme.series[0]))
    for shift, (name, found, colour) in zip((-0.2, 0.2), named, strict=True):
        pieces = np.minimum(np.array(found.pieces), most)
        shares = [100 * float((pieces == number).mean()) for number in places]
        label = f"{name}: {found.mean_pieces:.2f} pieces on average"
        counts.bar(places + shift, shares, width=0.38, color=colour, label=label)
        inside = np.sort(np.array(found.in_largest))[::-1]
        along = 100 * (np.arange(len(inside)) + 1) / len(inside)
        parts.plot(along, 100 * inside, color=colour, linewidth=1.8, label=name)
    ticks = [str(number) for number in places[:-1]] + [f"{most}+"]
    counts.set_xticks(places, ticks)
    counts.set_xlabel("connected pieces of a cluster")
    counts.set_ylabel("clusters (%)")
    titled(counts, "Pieces per cluster", theme)
    parts.set_xlabel("clusters, the most connected first (%)")
    parts.set_ylabel("tokens in the largest piece (%)")
    parts.set_ylim(0, 103)
    parts.set_xlim(0, 100)
    titled(parts, "How much of a cluster is in one piece", theme)
    for panel in (counts, parts):
        panel.grid(axis="y", color=theme.grid, linewidth=0.7)
    legend(counts, theme, loc="upper right")
    legend(parts, theme, loc="lower left")
    return figure


def coloured(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """(t, H, W, 3) colours of clusters: steps of the golden angle keep neighbours apart."""
    number = int(labels.max()) + 1
    order = np.random.default_rng(0).permutation(number)
    colours = np.array(
        [
            colorsys.hsv_to_rgb(
                (one * 0.618034) % 1, (0.85, 0.5, 0.65)[one % 3], (0.95, 0.8, 0.6)[one // 3 % 3]
            )
            for one in order
        ]
    )
    return np.asarray(colours[labels])
