"""The figures of a report: which there are, what stands above them, what their series are called.

All are drawn without a display and without matplotlib's global state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jobs.report.bar_plots import latency_bars, token_bars
from jobs.report.forest_plot import Series, caption_of, forest_plot
from jobs.report.pareto_plot import Styles, pareto
from jobs.report.score_plot import score_plot
from jobs.report.theme import LIGHT, Theme, png
from jobs.results.cell_summary import CellSummary
from jobs.results.group_differences import families_of
from tango_core.metrics import ACCURACY

# Files of the same plot: of accuracies, and where there are other headlines.
ACCURACY_PLOT, SCORE_PLOT = "accuracy_vs_retention.png", "score_vs_retention.png"
COST_PLOT = "score_vs_cost.png"
CAPTIONS = {
    ACCURACY_PLOT: "Accuracy over the share of visual tokens asked for",
    SCORE_PLOT: "Scores over the share of visual tokens asked for",
    COST_PLOT: "Scores over time and over tokens; none beats a ringed cell in both",
    "latency.png": "Where the time of one question goes",
    "tokens_kept.png": "Tokens asked for and tokens really kept",
}
_MARKERS = "osD^vP*Xph<>"


@dataclass(frozen=True)
class Plot:
    """A figure as PNG, and what stands above it."""

    caption: str
    image: bytes


def draw_plots(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw every figure that the cells have data for, but for the differences by group.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        File name -> figure, in the order in which a report shows them.
    """
    scored = [cell for cell in cells if cell.headline is not None]

    def series(cell: CellSummary) -> str:
        return _series(cell, [other for other in scored if other.benchmark == cell.benchmark])

    styles = _styles(scored, series, theme)
    alone = all(cell.metric == ACCURACY.name for cell in cells)
    drawn = {
        ACCURACY_PLOT if alone else SCORE_PLOT: score_plot(scored, series, styles, theme),
        COST_PLOT: pareto(scored, series, styles, theme),
        "latency.png": latency_bars(cells, theme),
        "tokens_kept.png": token_bars(cells, theme),
    }
    return {
        name: Plot(CAPTIONS[name], png(figure))
        for name, figure in drawn.items()
        if figure is not None
    }


def draw_forests(cells: Sequence[CellSummary], theme: Theme = LIGHT) -> dict[str, Plot]:
    """Draw differences to all tokens: a figure per benchmark and group that has several values.

    Args:
        cells: Cells of one run or of several.
        theme: Colours.

    Returns:
        File name -> figure, in the order in which a report shows them.
    """
    several = len({cell.benchmark for cell in cells}) > 1
    drawn: dict[str, Plot] = {}
    for family in families_of(cells):
        headline = family.metric == family.members[0].cell.metric
        if not headline or len({member.value for member in family.members}) < 2:
            continue
        own = [cell for cell in cells if cell.benchmark == family.benchmark]
        figure = forest_plot(family, partial(_series, cells=own), theme)
        where = f"{family.benchmark}: " if several else ""
        name = _file_name(f"{family.benchmark} {family.group}" if several else family.group, drawn)
        drawn[name] = Plot(where + caption_of(family), png(figure))
    return drawn


def _file_name(words: str, taken: Collection[str]) -> str:
    """A file's name from names that are the users'."""
    stem = "differences_by_" + re.sub("[^a-z0-9]+", "_", words.lower()).strip("_")[:80]
    name, number = f"{stem}.png", 2
    while name in taken:
        name, number = f"{stem}_{number}.png", number + 1
    return name


def save_plots(plots: Mapping[str, Plot], folder: Path) -> None:
    """Write figures as PNG files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in plots.items():
        (folder / name).write_bytes(plot.image)


def _series(cell: CellSummary, cells: Sequence[CellSummary]) -> str:
    """The name under which cells that differ in retention alone are connected."""
    if len({other.run_id for other in cells}) > 1:
        own = [other for other in cells if other.run_id == cell.run_id]
        return f"{cell.run_id}: {_series(cell, own)}"
    variants = {
        json.dumps(dict(other.options), sort_keys=True, default=str)
        for other in cells
        if other.method == cell.method
    }
    if len(variants) == 1:
        return cell.method
    return cell.series or cell.method


def _styles(cells: Sequence[CellSummary], series: Series, theme: Theme) -> Styles:
    """The colour and marker of every series but that of all tokens, the same in all figures."""
    names = dict.fromkeys(series(cell) for cell in cells if not cell.is_baseline)
    return {
        name: (theme.series[index % len(theme.series)], _MARKERS[index % len(_MARKERS)])
        for index, name in enumerate(names)
    }
