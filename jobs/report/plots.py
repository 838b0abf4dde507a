"""The plots of a report as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

import pandas as pd

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.charts import Axis, Panel, axis_around, symbol
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.comparisons import differences_by_group
from jobs.results.quantities import are_ranked
from jobs.results.replicates import ReplicatedCell
from tango_core.compressors import CONTROLS
from tango_core.metrics.comparison import LEVEL

# Maximum number of rows of a panel of differences; the values with most questions are drawn.
MOST_VALUES = 40
_LONGEST_VALUE = 18
# Columns of a difference that a mark shows.
_MARKED = (
    *("value", "difference", "difference_low", "difference_high", "too_few_clips"),
    *("shape", "hollow"),
)


@dataclass(frozen=True)
class Plot:
    """A figure.

    Attributes:
        name: Name of its file without a suffix.
        caption: Title.
        panels: SVG of each panel, the legend last.
    """

    name: str
    caption: str
    panels: Sequence[fmt.Html]


def save_plots(plots: Sequence[Plot], folder: Path) -> None:
    """Write figures as SVG files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        text = charts.in_one_file(plot.panels)
        (folder / f"{plot.name}.svg").write_text(text, encoding="utf-8")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Find the points that are not dominated in cost and value.

    Args:
        points: (cost, value) pairs; lower cost and higher value are better.

    Returns:
        Indices by increasing cost; of equal points only the first.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def _tokens(cells: Sequence[CellSummary]) -> tuple[str, list[float | None]]:
    shares = [cell.equivalent_retention for cell in cells]
    return "visual tokens, % (average over layers)", [s and 100 * s for s in shares]


def _time(cells: Sequence[CellSummary]) -> tuple[str, list[float | None]]:
    """Whole time to the first token; without the encoder where some cell did not measure it."""
    whole = [cell.first_token_ms for cell in cells]
    if None not in whole:
        return "time to first token with vision, ms", whole
    prefill = [cell.p50("ttft") or cell.p50("prefill") for cell in cells]
    rest = [ms and ms + (c.p50("compress") or 0.0) for c, ms in zip(cells, prefill, strict=True)]
    return "prune + prefill, ms", rest


def score_plot(cells: Sequence[CellSummary]) -> Plot | None:
    """Headline metrics with 95 % intervals over tokens and over time, two panels per benchmark.

    Cells that no other one beats in cost and score are ringed.

    Returns:
        The figure; `None` if no benchmark has two cells with a score and a cost.
    """
    cells = [cell for cell in cells if cell.headline is not None]
    pruned = [cell for cell in cells if not cell.is_baseline]
    numbers = {name: at for at, name in enumerate(dict.fromkeys(_series_of(pruned, cells)))}
    panels = []
    for benchmark, own in _by_benchmark(cells).items():
        for title, costs in (_tokens(own), _time(own)):
            known = [(cell, x) for cell, x in zip(own, costs, strict=True) if x]
            if len(known) > 1:
                panels.append(_score_panel(benchmark, title, known, cells, numbers))
    if not panels:
        return None
    entries = [(symbol(at), name) for name, at in numbers.items()]
    if len(pruned) < len(cells):
        full = f'<g><path class="guide" d="M-9 0h18"/>{symbol(-1, shape=1)}</g>'
        entries.append((full, "full: all tokens, with its interval"))
    entries.append((charts.RING, "no cell is better and cheaper"))
    caption = "Scores over tokens and over time"
    return Plot("score_vs_cost", caption, [*panels, charts.legend(entries)])


def _score_panel(
    benchmark: str,
    title: str,
    known: Sequence[tuple[CellSummary, float]],
    cells: Sequence[CellSummary],
    numbers: Mapping[str, int],
) -> fmt.Html:
    """Draw one benchmark: `full` as a band, the other cells as points with their intervals."""
    own = [cell for cell, _ in known]
    scores = [cell.headline for cell in own if cell.headline]
    points = [(x, 100 * score.value) for (_, x), score in zip(known, scores, strict=True)]
    ends = [100 * end for score in scores for end in (score.low, score.high)]
    x = axis_around([cost for _, cost in known], title, log=True)
    panel = Panel(f"{benchmark}: {metric_title(own[0])} %", x, axis_around(ends, ""))
    lines: dict[int, list[tuple[float, float]]] = {}
    series = [numbers.get(name, -1) for name in _series_of(own, cells)]
    for cell, number, point, score in zip(own, series, points, scores, strict=True):
        if cell.is_baseline:
            panel.box((x.low, x.high), (100 * score.low, 100 * score.high), "band")
            panel.line([(x.low, point[1]), (x.high, point[1])], "guide")
        else:
            lines.setdefault(number, []).append(point)
    for number, line in lines.items():
        panel.line(sorted(line), f"range faint s{number % charts.NUM_COLOURS}")
    for at in pareto_front(points) if are_ranked(own) else ():
        panel.mark(*points[at], charts.RING)
    for cell, number, point, score in zip(own, series, points, scores, strict=True):
        kind = "ink" if cell.is_baseline else f"s{number % charts.NUM_COLOURS}"
        interval = [(point[0], 100 * score.low), (point[0], 100 * score.high)]
        panel.line(interval, f"range faint {kind}")
        name = f"{cell.name}: {fmt.percent(score.value)} % ({fmt.interval(score)})"
        drawn = symbol(-1, shape=1) if cell.is_baseline else symbol(number)
        panel.mark(*point, drawn, name)
    return panel.svg()


@dataclass(frozen=True)
class _Mark:
    """A value with an interval in a row of a panel; its symbol is of the colour `series`."""

    row: float
    value: float
    low: float
    high: float
    series: int
    name: str
    few: bool = False
    shape: int = 0
    hollow: bool = False


def _rows_panel(
    title: str, rows: Sequence[str], marks: Sequence[_Mark], x: Axis, guide: float | None
) -> fmt.Html:
    """Draw values with intervals in named rows.

    Args:
        title: Title of the panel.
        rows: Names of the rows, the first one on top.
        marks: What is drawn.
        x: Scale; intervals may reach beyond it.
        guide: Value of a vertical line; `None` for none.
    """
    names = {at + 0.5: fmt.shortened(name, _LONGEST_VALUE + 6) for at, name in enumerate(rows)}
    in_row = max(sum(mark.row // 1 == at for mark in marks) for at in range(len(rows)))
    height = len(rows) * max(19, 7 + 6.0 * min(in_row, 6))
    left = 14 + 7.4 * max(map(len, names.values()))
    panel = Panel(title, x, Axis(len(rows), 0, labels=names), height, left)
    for at in range(1, len(rows), 2):
        panel.box((x.low, x.high), (at, at + 1), "band")
    if guide is not None:
        panel.line([(guide, 0), (guide, len(rows))], "guide")
    for mark in marks:
        low, high = max(x.low, mark.low), min(x.high, mark.high)
        kind = f"range s{mark.series % charts.NUM_COLOURS}{' few' if mark.few else ''}"
        panel.line([(low, mark.row), (high, mark.row)], kind)
        drawn = symbol(mark.series, shape=mark.shape, hollow=mark.hollow)
        panel.mark(mark.value, mark.row, drawn, mark.name)
    return panel.svg()


def draw_forests(cells: Sequence[CellSummary]) -> list[Plot]:
    """Draw differences to `full`: one figure per benchmark and group with several values."""
    headlines = {cell.benchmark: cell.metric for cell in cells}
    drawn: dict[str, Plot] = {}
    families = differences_by_group(cells).groupby(["benchmark", "metric", "group"], sort=False)
    for key, family in families:
        benchmark, metric, group = map(str, cast("tuple[str, str, str]", key))
        if metric != headlines[benchmark] or family["value"].nunique() < 2:
            continue
        where = f"{benchmark}: " if len(headlines) > 1 else ""
        stem = re.sub("[^a-z0-9]+", "_", f"{where}{group}".lower()).strip("_")[:80]
        name = f"differences_by_{stem}"
        while name in drawn:
            name += "_2"
        own = [cell for cell in cells if cell.benchmark == benchmark]
        drawn[name] = Plot(name, f"{where}{caption_of(family)}", forest_panels(family, own))
    return list(drawn.values())


def caption_of(family: pd.DataFrame) -> str:
    """Caption with the number of comparisons and of those significant after Holm's correction."""
    surviving = (family["p_value_holm"] < LEVEL).sum()
    drawn, every = len(values_of(family)), family["value"].nunique()
    cut = f"; the {drawn} values with most questions of {every}" if drawn < every else ""
    return (
        f"{family['group'].iloc[0]}: {len(family):,} comparisons, {surviving:,} significant after "
        f"Holm's correction (filled){cut}"
    )


def values_of(family: pd.DataFrame) -> dict[str, int]:
    """The drawn values in alphabetical order, with their numbers of questions."""
    counts = family.groupby("value")["num_questions"].max()
    most = counts.sort_values(ascending=False, kind="stable").head(MOST_VALUES)
    return {str(value): int(count) for value, count in most.sort_index().items()}


def forest_panels(family: pd.DataFrame, cells: Sequence[CellSummary]) -> list[fmt.Html]:
    """Paired differences with 95 % intervals, a panel per series, one colour per retention.

    Filled points are significant after Holm's correction over the family; dotted intervals are
    based on too few clips and are conservative bounds. Diamonds are the differences over all
    questions, which are not part of the family. All panels have the same scale, and intervals may
    extend beyond it.

    Args:
        family: Rows of `differences_by_group` that are corrected together.
        cells: All cells of the benchmark.
    """
    values = values_of(family)
    retentions = sorted(family["retention"].unique())
    # The scale includes 0, all differences, and all intervals but those of too few clips.
    sure = family[~family["too_few_clips"].astype(bool)]
    ends = pd.concat([family["difference"], sure["difference_low"], sure["difference_high"]])
    title = f"{metric_title(cells[0], family['metric'].iloc[0])}: points vs full"
    x = axis_around([0.0, *(100 * ends)], title)
    counted = [f"{fmt.shortened(value, _LONGEST_VALUE)} {n:,}" for value, n in values.items()]
    rows = {value: at for at, value in enumerate([*values, "all"])}
    panels: dict[str, list[_Mark]] = {}
    for name, cell in zip(_series_of(cells, cells), cells, strict=True):
        own = family[(family["run_id"] == cell.run_id) & (family["cell"] == cell.name)]
        if own.empty or cell.versus_full is None or cell.versus_full.paired is None:
            continue
        at, whole = retentions.index(cell.retention_requested), cell.versus_full.paired
        shown = own[own["value"].isin(list(values))].assign(shape=0)
        marks = shown.assign(hollow=shown["p_value_holm"] >= LEVEL)[list(_MARKED)]
        points = [tuple(row) for row in marks.to_numpy().tolist()]
        figures = (whole.difference, whole.low, whole.high, whole.too_few_clips)
        points.append(("all", *figures, charts.DIAMOND, False))
        for value, difference, low, high, few, shape, hollow in points:
            row = rows[value] + (at + 1) / (len(retentions) + 1)
            text = f"{cell.name}, {value}: {fmt.points(difference)}"
            place = (row, 100 * difference, 100 * low, 100 * high, at, text)
            panels.setdefault(name, []).append(_Mark(*place, few, shape, hollow))
    drawn = [_rows_panel(name, [*counted, "all"], own, x, 0) for name, own in panels.items()]
    entries = [(symbol(at, shape=0), f"{100 * share:g} %") for at, share in enumerate(retentions)]
    entries += [
        (symbol(0, shape=0, hollow=True), "not significant after Holm's correction"),
        ('<path class="range few s0" d="M-9 0h18"/>', "too few clips for an interval"),
        (symbol(0, shape=charts.DIAMOND), "all questions"),
    ]
    return [*drawn, charts.legend(entries)]


def replicates_panels(found: Sequence[ReplicatedCell]) -> list[fmt.Html]:
    """One panel per benchmark and retention, one row per method, one point per training.

    Methods are sorted by their mean over their retentions, the best one on top; controls are
    hollow. A retention with controls only has no panel. The dashed line is the mean of `full`.

    Args:
        found: Cells of several trainings; at least one is not `full`.
    """
    pruned = [one for one in found if not one.cell.is_baseline]
    methods = [one for one in pruned if one.cell.method not in CONTROLS] or pruned
    shares = sorted({one.cell.retention_requested for one in methods})
    panels = []
    for benchmark in dict.fromkeys(one.cell.benchmark for one in pruned):
        own = [one for one in found if one.cell.benchmark == benchmark]
        full = next((100 * one.mean for one in own if one.cell.is_baseline), None)
        x = axis_around(
            [100 * value for one in own for value in one.values],
            f"{headline_title([one.cell for one in own])} (%)",
        )
        means: dict[str, list[float]] = {}
        for one in pruned:
            cell = one.cell
            if cell.benchmark == benchmark and cell.retention_requested in shares:
                means.setdefault(cell.series, []).append(one.mean)
        order = sorted(means, key=lambda name: -fmean(means[name]))
        for share in shares:
            marks = []
            for one in own:
                if one.cell.retention_requested == share and not one.cell.is_baseline:
                    row, control = order.index(one.cell.series) + 0.5, one.cell.method in CONTROLS
                    low, high = 100 * min(one.values), 100 * max(one.values)
                    for value in one.values:
                        name, series = f"{one.cell.name}: {fmt.percent(value)}", 7 * control
                        mark = _Mark(row, 100 * value, low, high, series, name, hollow=control)
                        marks.append(mark)
            panels.append(_rows_panel(f"{benchmark}, {100 * share:g} %", order, marks, x, full))
    return panels


def _by_benchmark(cells: Sequence[CellSummary]) -> dict[str, list[CellSummary]]:
    found: dict[str, list[CellSummary]] = {}
    for cell in cells:
        found.setdefault(cell.benchmark, []).append(cell)
    return found


def _series_of(own: Sequence[CellSummary], cells: Sequence[CellSummary]) -> list[str]:
    """Series of some cells, with the run if `cells` are of several; they differ in retention."""
    several = len({cell.run_id for cell in cells}) > 1
    return [f"{cell.run_id}: {cell.series}" if several else cell.series for cell in own]
