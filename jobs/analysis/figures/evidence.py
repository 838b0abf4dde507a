"""Figures of `tango analyze evidence`: what survives, and what that explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from jobs.analysis.explained import BIN_NAMES, Explained
from jobs.analysis.figures.curves import Points, draw_series, legend_below, shortened
from jobs.analysis.figures.maps import titled
from jobs.report.theme import Theme, legend_above, new_figure

# Questions that a point of a curve is made of, at least.
_FEWEST = 10


def survival_curves(cells: Sequence[Explained], theme: Theme) -> Figure:
    """Share that survives, and share of questions without evidence, over the tokens kept."""
    figure, (left, right) = new_figure((11.6, 5.6), theme, columns=2)
    for panel, measure, what in (
        (left, "share", "tokens of the object that survive (%)"),
        (right, "gone", "questions whose evidence is gone (%)"),
    ):
        draw_series(panel, _over_tokens(cells, measure), theme)
        panel.set_xlabel("tokens kept (%)")
        panel.set_ylabel(what)
        panel.set_ylim(bottom=0)
    ordered = sorted(cells, key=lambda one: one.retention)
    kept = [100 * one.retention for one in ordered]
    for attribute, dashes, name in (
        ("best_for_clip", (None, None), "best set for the clip"),
        ("best", (1, 1.5), "best set for the question"),
    ):
        values = [100 * getattr(one, attribute) for one in ordered]
        left.plot(kept, values, color=theme.foreground, dashes=dashes, linewidth=1.6, label=name)
    left.plot(kept, kept, color=theme.foreground, alpha=0.5, dashes=(5, 3), label="random set")
    left.set_ylim(0, 103)
    legend_below(figure, left, theme)
    return figure


def by_bin(cells: Sequence[Explained], theme: Theme) -> Figure:
    """Accuracy over the bins of surviving shares, and how many questions are in each."""
    figure, (left, right) = new_figure((11.6, 5.4), theme, columns=2)
    sums: dict[str, np.ndarray] = {}
    for one in cells:
        if one.outcome is not None:
            counts = np.array(one.outcome.bins, dtype=float)
            sums[one.cell.series] = sums.get(one.cell.series, 0) + counts
    draw_series(left, {name: _accuracies(counts) for name, counts in sums.items()}, theme)
    total = np.sum(list(sums.values()), axis=0)
    pooled = _accuracies(total)
    left.plot(
        [x for x, _ in pooled],
        [y for _, y in pooled],
        color=theme.foreground,
        linewidth=2.6,
        marker="o",
        label="all cells",
        zorder=5,
    )
    places = np.arange(len(BIN_NAMES))
    shares = 100 * total[:, 0] / max(1.0, total[:, 0].sum())
    right.bar(places, shares, width=0.7, color=theme.series[5])
    for place, (share, (number, _)) in enumerate(zip(shares, total, strict=True)):
        right.text(
            place,
            float(share),
            f"{int(number):,}",
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=theme.foreground,
        )
    right.set_ylabel("questions of all cells (%)")
    left.set_ylabel("accuracy (%) on what all tokens answer")
    left.set_ylim(0, 103)
    for panel, what in ((left, "Accuracy"), (right, "Questions")):
        panel.set_xticks(places, BIN_NAMES, fontsize=8.5)
        panel.set_xlabel("object's tokens that survive")
        panel.grid(axis="y", color=theme.grid, linewidth=0.6)
        titled(panel, what, theme)
    legend_below(figure, left, theme)
    return figure


def lost_bars(cells: Sequence[Explained], theme: Theme) -> Figure:
    """Lost answers of every cell by what became of their evidence."""
    told = [one for one in cells if one.outcome is not None]
    figure, (panel,) = new_figure((10.4, 1.5 + 0.31 * len(told)), theme)
    rows = np.arange(len(told))
    ends = np.zeros(len(told))
    parts = {
        "gone, the best set keeps it": theme.series[1],
        "gone, the best set loses it too": theme.series[4],
        "still there": theme.series[0],
    }
    for number, (name, colour) in enumerate(parts.items()):
        values = np.array([100 * _lost_parts(one)[number] for one in told])
        panel.barh(rows, values, left=ends, height=0.7, color=colour, label=name)
        ends += values
    for row, end in enumerate(ends.tolist()):
        panel.text(end + 0.3, row, f"{end:.1f}", va="center", fontsize=8.5, color=theme.foreground)
    panel.set_yticks(rows, [shortened(one.cell.series) for one in told])
    panel.set_ylim(len(told) - 0.4, -0.6)
    panel.set_xlim(0, max(1.0, 1.08 * float(ends.max(initial=1.0))))
    panel.set_xlabel("answers lost, in % of those right with all tokens")
    panel.grid(axis="x", color=theme.grid, linewidth=0.6)
    legend_above(figure, panel, theme)
    return figure


def _lost_parts(one: Explained) -> tuple[float, float, float]:
    """Shares of the questions right with all tokens: lost ones by what became of the evidence."""
    told = one.outcome
    if told is None or not told.num_right_in_full:
        return 0.0, 0.0, 0.0
    whole = told.num_right_in_full
    return (
        told.lost_avoidable / whole,
        (told.lost_gone - told.lost_avoidable) / whole,
        (told.num_lost - told.lost_gone) / whole,
    )


def _over_tokens(cells: Sequence[Explained], measure: str) -> dict[str, Points]:
    """Series -> points of a measure in percent."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in cells:
        point = (100 * one.retention, 100 * getattr(one, measure))
        found.setdefault(one.cell.series, []).append(point)
    return {name: sorted(points) for name, points in found.items()}


def _accuracies(counts: np.ndarray) -> Points:
    """Place of a bin and its accuracy in percent, of bins with enough questions."""
    return [
        (float(place), 100 * right / number)
        for place, (number, right) in enumerate(counts)
        if number >= _FEWEST
    ]
