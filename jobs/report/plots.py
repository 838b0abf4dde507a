"""The plots of a report as SVG, each with the table of its numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from jobs.report import charts
from jobs.report import formatting as fmt
from jobs.report.charts import Axis, Panel, axis_around
from jobs.report.tables.cells import labels, tables_of_cells
from jobs.results.cell_summary import CellSummary, headline_title, metric_title
from jobs.results.comparisons import Family, GroupDifference, families_of
from jobs.results.quantities import are_ranked
from jobs.results.replicates import ReplicatedCell
from tango_core.compressors import CONTROLS
from tango_core.metrics import Comparison

# Maximum number of rows of a panel of differences; the values with most questions are drawn.
MOST_VALUES = 40
_LONGEST_VALUE = 18
# Returns the name of a cell's series: cells of a series differ only in retention.
Series = Callable[[CellSummary], str]


@dataclass(frozen=True)
class Plot:
    """A figure.

    Attributes:
        name: Name of its file without a suffix.
        caption: Title.
        panels: SVG of each panel, the legend last.
        table: Its numbers.
    """

    name: str
    caption: str
    panels: Sequence[fmt.Html]
    table: fmt.Table


def draw_plots(cells: Sequence[CellSummary]) -> list[Plot]:
    """All figures for which the cells have data, except the differences by group."""
    scored = [cell for cell in cells if cell.headline is not None]
    found = [score_plot(scored), latency_plot(cells)]
    return [plot for plot in found if plot is not None]


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

    Cells that no other one beats in cost and score are ringed and connected.

    Args:
        cells: Cells with a headline metric.

    Returns:
        The figure; `None` if no benchmark has two cells with a cost.
    """
    benchmarks = _by_benchmark(cells)
    names = {id(cell): _series(cell, benchmarks[cell.benchmark]) for cell in cells}
    listed = dict.fromkeys(names[id(cell)] for cell in cells if not cell.is_baseline)
    numbers = {name: at for at, name in enumerate(listed)}
    panels = []
    rows: dict[int, list[str]] = {}
    for cell, label in zip(cells, labels(cells), strict=True):
        rows[id(cell)] = [
            label,
            fmt.estimate_percent(cell.headline),
            fmt.interval(cell.headline),
        ]
    for benchmark, own in benchmarks.items():
        for costs_of in (_tokens, _time):
            title, costs = costs_of(own)
            known = [(cell, x) for cell, x in zip(own, costs, strict=True) if x]
            values = [100 * cell.headline.value for cell, _ in known if cell.headline]
            places = list(zip([x for _, x in known], values, strict=True))
            front = pareto_front(places) if are_ranked(own) else []
            best = {id(known[at][0]) for at in front}
            for cell, x in zip(own, costs, strict=True):
                rows[id(cell)] += [
                    f"{x:.4g}" if x else fmt.DASH,
                    "yes" if id(cell) in best else "",
                ]
            if len(known) > 1:
                panels.append(_score_panel(benchmark, title, known, places, front, names, numbers))
    if not panels:
        return None
    entries = [(charts.symbol(at), name) for name, at in numbers.items()]
    if any(cell.is_baseline for cell in cells):
        entries.append((_FULL, "full: all tokens, with its interval"))
    entries.append((_RINGED, "no cell is better and cheaper"))
    header = ["cell", f"{headline_title(cells)} %", "95 % interval"]
    header += ["tokens %", "ringed", "ms", "ringed"]
    table = fmt.Table(header, list(rows.values()))
    return Plot("score_vs_cost", _CAPTION, [*panels, charts.legend(entries)], table)


_CAPTION = "Scores over tokens and over time"
_FULL = f'<g><path class="guide" d="M-9 0h18"/>{charts.symbol(-1, shape=1)}</g>'
_RINGED = '<circle class="front" r="7"/>'


def _score_panel(
    benchmark: str,
    title: str,
    known: Sequence[tuple[CellSummary, float]],
    places: Sequence[tuple[float, float]],
    front: Sequence[int],
    names: Mapping[int, str],
    numbers: Mapping[str, int],
) -> fmt.Html:
    """Draw one benchmark: `full` as a band, the other cells as points with their intervals."""
    scores = [cell.headline for cell, _ in known if cell.headline]
    ends = [100 * end for score in scores for end in (score.low, score.high)]
    x = axis_around([place[0] for place in places], title, log=True)
    panel = Panel(f"{benchmark}: {metric_title(known[0][0])} %", x, axis_around(ends, ""))
    lines: dict[str, list[tuple[float, float]]] = {}
    for (cell, _), place, score in zip(known, places, scores, strict=True):
        if cell.is_baseline:
            panel.box((x.low, x.high), (100 * score.low, 100 * score.high), "band")
            panel.line([(x.low, place[1]), (x.high, place[1])], "guide")
        else:
            lines.setdefault(names[id(cell)], []).append(place)
    for name, own in lines.items():
        panel.line(sorted(own), f"range faint s{numbers[name] % charts.NUM_COLOURS}")
    stairs: list[tuple[float, float]] = []
    for index in front:
        before = stairs[-1:]
        stairs += [(places[index][0], y) for _, y in before] + [places[index]]
        panel.ring(*places[index])
    if stairs:
        panel.line(stairs, "front")
    for (cell, _), place, score in zip(known, places, scores, strict=True):
        series = numbers.get(names[id(cell)], -1)
        kind = "ink" if cell.is_baseline else f"s{series % charts.NUM_COLOURS}"
        panel.line(
            [(place[0], 100 * score.low), (place[0], 100 * score.high)], f"range faint {kind}"
        )
        name = f"{cell.name}: {fmt.percent(score.value)} % ({fmt.interval(score)})"
        panel.mark(*place, series, name, shape=1 if cell.is_baseline else -1)
    return panel.svg()


STACKED = ("vision", "compress", "prefill", "decode")
_BAR = 30


def latency_plot(cells: Sequence[CellSummary]) -> Plot | None:
    """Stacked bars of median milliseconds per stage, one bar per cell and one panel per table.

    Returns:
        The figure; `None` if nothing was timed.
    """
    timed = [cell for cell in cells if any(stage in cell.latency_ms for stage in STACKED)]
    if not timed:
        return None
    stages = [stage for stage in STACKED if any(stage in cell.latency_ms for cell in timed)]
    parts = {id(cell): [cell.p50(stage) or 0.0 for stage in stages] for cell in timed}
    largest = max(1.0, *(sum(ms) for ms in parts.values()))
    x = Axis(0, 1.25 * largest, "median milliseconds")
    panels = []
    for name, own in tables_of_cells(timed):
        rows = Axis(len(own) - 0.5, -0.5, labels={})
        panel = Panel(name or "time of one question", x, rows, height=_BAR * len(own), left=6)
        for row, (label, cell) in enumerate(zip(labels(own), own, strict=True)):
            end = 0.0
            for stage, ms in zip(stages, parts[id(cell)], strict=True):
                kind = f"bar s{STACKED.index(stage)}"
                panel.box((end, end + ms), (row + 0.08, row + 0.4), kind)
                end += ms
            cached = "" if "vision" in cell.latency_ms else " (vision from cache)"
            name = fmt.shortened(label, charts.MOST_LETTERS - len(cached)) + cached
            panel.text(8, panel.down(row) - 3, name)
            panel.text(panel.across(end) + 4, panel.down(row + 0.36), fmt.milliseconds(end))
        panels.append(panel.svg())
    bars = [f'<path class="bar s{STACKED.index(stage)}" d="M-9-5h18v10h-18z"/>' for stage in stages]
    rows_of = [
        [
            label,
            *map(fmt.milliseconds, parts[id(cell)]),
            fmt.milliseconds(sum(parts[id(cell)])),
        ]
        for label, cell in zip(labels(timed), timed, strict=True)
    ]
    legend = charts.legend(list(zip(bars, [_PER[stage] for stage in stages], strict=True)))
    table = fmt.Table(["cell, ms", *stages, "sum"], rows_of)
    return Plot("latency", "Where the time of one question goes", [*panels, legend], table)


_PER = {
    "vision": "vision: encode the clip",
    "compress": "compress: prune its tokens",
    "prefill": "prefill: read the prompt",
    "decode": "decode: write the reply",
}


@dataclass(frozen=True)
class _Mark:
    """A value with an interval in a row of a panel."""

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
    names = {float(at): fmt.shortened(name, _LONGEST_VALUE + 6) for at, name in enumerate(rows)}
    in_row = max([1, *(sum(mark.row // 1 == at // 1 for mark in marks) for at in names)])
    height = len(rows) * max(19, 7 + 6.0 * min(in_row, 6))
    left = 14 + 7.4 * max(map(len, names.values()))
    y = Axis(len(rows), 0, labels={at + 0.5: name for at, name in names.items()})
    panel = Panel(title, x, y, height, left)
    for at in range(1, len(rows), 2):
        panel.box((x.low, x.high), (at, at + 1), "band")
    if guide is not None:
        panel.line([(guide, 0), (guide, len(rows))], "guide")
    for mark in marks:
        low, high = max(x.low, mark.low), min(x.high, mark.high)
        kind = f"range s{mark.series % charts.NUM_COLOURS}{' few' if mark.few else ''}"
        panel.line([(low, mark.row), (high, mark.row)], kind)
    for mark in marks:
        place = mark.value, mark.row, mark.series, mark.name
        panel.mark(*place, shape=mark.shape, hollow=mark.hollow)
    return panel.svg()


def draw_forests(cells: Sequence[CellSummary]) -> list[Plot]:
    """Draw differences to `full`: one figure per benchmark and group with several values."""
    benchmarks = _by_benchmark(cells)
    drawn: list[Plot] = []
    for family in families_of(cells):
        headline = family.metric == family.members[0].cell.metric
        if not headline or len({member.value for member in family.members}) < 2:
            continue
        where = f"{family.benchmark}: " if len(benchmarks) > 1 else ""
        stem = re.sub("[^a-z0-9]+", "_", f"{where}{family.group}".lower()).strip("_")[:80]
        name, taken = f"differences_by_{stem}", {plot.name for plot in drawn}
        free = (n for n in [name, *(f"{name}_{at}" for at in range(2, 999))] if n not in taken)
        panels = forest_panels(family, partial(_series, cells=benchmarks[family.benchmark]))
        caption = f"{where}{caption_of(family)}"
        drawn.append(Plot(next(free), caption, panels, _table_of_differences(family)))
    return drawn


def caption_of(family: Family) -> str:
    """Caption with the number of comparisons and how many survive Holm's correction."""
    number, surviving = len(family.members), family.num_surviving
    drawn, there = len(values_of(family)), len({member.value for member in family.members})
    cut = f"; the {drawn} values with most questions of {there}" if drawn < there else ""
    comparisons = "1 comparison" if number == 1 else f"{number:,} comparisons"
    survive = "1 survives" if surviving == 1 else f"{surviving:,} survive"
    return f"{family.group}: {comparisons}, {survive} Holm's correction (filled){cut}"


def values_of(family: Family) -> dict[str, int]:
    """The drawn values in alphabetical order, with their numbers of questions."""
    counts: dict[str, int] = {}
    for member in family.members:
        counts[member.value] = max(counts.get(member.value, 0), member.paired.num_questions)
    most = sorted(counts, key=lambda value: -counts[value])[:MOST_VALUES]
    return {value: counts[value] for value in sorted(most)}


def forest_panels(family: Family, series: Series) -> list[fmt.Html]:
    """Paired differences with 95 % intervals, a panel per series, one colour per retention.

    Filled points survive Holm's correction over the family; dotted intervals are based on too few
    clips and are conservative bounds. Diamonds are the differences over all questions, which are
    not part of the family. All panels have the same scale, and intervals may extend beyond it.
    """
    values = values_of(family)
    retentions = sorted({member.cell.retention_requested for member in family.members})
    # The scale includes 0, all differences, and all intervals but those of too few clips.
    paired = [member.paired for member in family.members]
    ends = [0.0, *(100 * one.difference for one in paired)]
    ends += [100 * end for one in paired if not one.too_few_clips for end in (one.low, one.high)]
    x = axis_around(ends, f"{metric_title(family.members[0].cell, family.metric)}: points vs full")
    rows = [
        *(f"{fmt.shortened(value, _LONGEST_VALUE)} {n:,}" for value, n in values.items()),
        "all",
    ]
    places = {value: at for at, value in enumerate(values)}

    def marks_of(members: Sequence[GroupDifference]) -> Iterator[_Mark]:
        whole = {}
        for member in members:
            cell = member.cell
            if member.value in places:
                drawn = mark(places[member.value], cell, member.value, member.paired)
                yield replace(drawn, hollow=not member.survives)
            if cell.versus_full and cell.versus_full.paired:
                whole[cell.name] = cell, cell.versus_full.paired
        for cell, versus in whole.values():
            yield replace(mark(len(places), cell, "all", versus), shape=charts.DIAMOND)

    def mark(row: int, cell: CellSummary, value: str, one: Comparison) -> _Mark:
        at = retentions.index(cell.retention_requested)
        place = row + (at + 1) / (len(retentions) + 1)
        name = f"{cell.name}, {value}: {fmt.points(one.difference)}"
        figures = 100 * one.difference, 100 * one.low, 100 * one.high
        return _Mark(place, *figures, at, name, one.too_few_clips)

    panels_of: dict[str, list[GroupDifference]] = {}
    for member in family.members:
        panels_of.setdefault(series(member.cell), []).append(member)
    panels = [
        _rows_panel(name, rows, list(marks_of(members)), x, 0)
        for name, members in panels_of.items()
    ]
    entries = [(charts.symbol(at, shape=0), f"{100 * r:g} %") for at, r in enumerate(retentions)]
    entries += [
        (charts.symbol(0, shape=0, hollow=True), "p of 0.05 or more after Holm's correction"),
        ('<path class="range few s0" d="M-9 0h18"/>', "too few clips for an interval"),
        (charts.symbol(0, shape=charts.DIAMOND), "all questions"),
    ]
    return [*panels, charts.legend(entries)]


def _table_of_differences(family: Family) -> fmt.Table:
    rows = []
    for member in family.members:
        one = member.paired
        ends = (
            "too few clips"
            if one.too_few_clips
            else f"{fmt.points(one.low)} to {fmt.points(one.high)}"
        )
        figures = [
            f"{one.num_questions:,}",
            fmt.points(one.difference),
            ends,
            fmt.corrected_p(member.p_value),
        ]
        rows.append([member.cell.name, member.value, *figures])
    header = ["cell", family.group, "n", "vs full, points", "95 % interval", "p (Holm)"]
    return fmt.Table(header, rows, text_columns=2)


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
        drawn = [one for one in own if one.cell.retention_requested in shares]
        means: dict[str, list[float]] = {}
        for one in drawn:
            means.setdefault(one.cell.series, []).append(one.mean)
        full = next((100 * one.mean for one in own if one.cell.is_baseline), None)
        drawn = [one for one in drawn if not one.cell.is_baseline]
        order = sorted({one.cell.series for one in drawn}, key=lambda name: -fmean(means[name]))
        values = [100 * value for one in own for value in one.values]
        x = axis_around(values, f"{headline_title([one.cell for one in own])} (%)")
        for share in shares:
            marks = []
            for one in (o for o in drawn if o.cell.retention_requested == share):
                row, ends = order.index(one.cell.series) + 0.5, (min(one.values), max(one.values))
                control = one.cell.method in CONTROLS
                for value in one.values:
                    figures = 100 * value, 100 * ends[0], 100 * ends[1]
                    name, series = (
                        f"{one.cell.name}: {fmt.percent(value)}",
                        7 if control else 0,
                    )
                    marks.append(_Mark(row, *figures, series, name, hollow=control))
            panels.append(_rows_panel(f"{benchmark}, {100 * share:g} %", order, marks, x, full))
    return panels


def _by_benchmark(cells: Sequence[CellSummary]) -> dict[str, list[CellSummary]]:
    found: dict[str, list[CellSummary]] = {}
    for cell in cells:
        found.setdefault(cell.benchmark, []).append(cell)
    return found


def _series(cell: CellSummary, cells: Sequence[CellSummary]) -> str:
    """Name of a cell's series: cells of a series differ only in retention."""
    run = f"{cell.run_id}: " if len({other.run_id for other in cells}) > 1 else ""
    variants = {
        json.dumps(dict(other.options), sort_keys=True, default=str)
        for other in cells
        if (other.run_id, other.method) == (cell.run_id, cell.method)
    }
    return run + (cell.method if len(variants) == 1 else cell.series or cell.method)
