"""The plots of a report as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.charts import Axis, Panel, axis_around, symbol
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.quantities import are_ranked
from jobs.results.replicates import ReplicatedCell
from tango_core.compressors import CONTROLS

_LONGEST_NAME = 24
_ROW = 19


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
        The figure; `None` if no cell has a score and a cost.
    """
    cells = [cell for cell in cells if cell.headline is not None]
    pruned = [cell for cell in cells if not cell.is_baseline]
    numbers = {name: at for at, name in enumerate(dict.fromkeys(_series_of(pruned, cells)))}
    panels = []
    for benchmark, own in _by_benchmark(cells).items():
        for title, costs in (_tokens(own), _time(own)):
            known = [(cell, x) for cell, x in zip(own, costs, strict=True) if x]
            if known:
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
        values = [100 * value for one in own for value in one.values]
        x = axis_around(values, f"{headline_title([one.cell for one in own])} (%)")
        own = [o for o in own if not o.cell.is_baseline and o.cell.retention_requested in shares]
        means: dict[str, list[float]] = {}
        for one in own:
            means.setdefault(one.cell.series, []).append(one.mean)
        order = sorted(means, key=lambda name: -fmean(means[name]))
        for share in shares:
            level = [one for one in own if one.cell.retention_requested == share]
            panels.append(_training_panel(f"{benchmark}, {100 * share:g} %", order, level, x, full))
    return panels


def _training_panel(
    title: str, order: Sequence[str], level: Sequence[ReplicatedCell], x: Axis, full: float | None
) -> fmt.Html:
    """Draw the values of one retention in a row per method, with the mean of `full` as a line."""
    names = {at + 0.5: fmt.shortened(name, _LONGEST_NAME) for at, name in enumerate(order)}
    left = 14 + 7.4 * max(map(len, names.values()))
    panel = Panel(title, x, Axis(len(order), 0, labels=names), _ROW * len(order), left)
    for at in range(1, len(order), 2):
        panel.box((x.low, x.high), (at, at + 1), "band")
    if full is not None:
        panel.line([(full, 0), (full, len(order))], "guide")
    for one in level:
        row, control = order.index(one.cell.series) + 0.5, one.cell.method in CONTROLS
        series = 7 if control else 0
        ends = 100 * min(one.values), 100 * max(one.values)
        panel.line([(end, row) for end in ends], f"range s{series}")
        for value in one.values:
            drawn = symbol(series, shape=0, hollow=control)
            panel.mark(100 * value, row, drawn, f"{one.cell.name}: {fmt.percent(value)}")
    return panel.svg()


def _by_benchmark(cells: Sequence[CellSummary]) -> dict[str, list[CellSummary]]:
    found: dict[str, list[CellSummary]] = {}
    for cell in cells:
        found.setdefault(cell.benchmark, []).append(cell)
    return found


def _series_of(own: Sequence[CellSummary], cells: Sequence[CellSummary]) -> list[str]:
    """Series of some cells, with the run if `cells` are of several; they differ in retention."""
    several = len({cell.run_id for cell in cells}) > 1
    return [f"{cell.run_id}: {cell.series}" if several else cell.series for cell in own]
