"""Scores against their cost in time and in tokens, with the best trade-offs marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from jobs.report.formatting import shortened
from jobs.report.theme import Theme, new_figure
from jobs.results.cell_summary import CellSummary
from jobs.results.headlines import headline_title
from jobs.results.readings import are_ranked

# What a method changes of a question's time; the vision tower sees every frame in any case.
COSTED = ("compress", "prefill")
MOST_NAMED = 14
LONGEST_NAME = 32

# Name of a cell's series -> (colour, marker).
Styles = Mapping[str, tuple[str, str]]
Cost = Callable[[CellSummary], float | None]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The points that no other one beats in both cost and value.

    Args:
        points: (cost, value) pairs; less cost and more value are better.

    Returns:
        Indices by rising cost; of equal points the first.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def milliseconds_of(cell: CellSummary) -> float | None:
    """Median milliseconds of compression and prefill; `None` if none was measured."""
    known = [cell.p50(stage) for stage in COSTED]
    if known[-1] is None:
        return None
    return sum(value for value in known if value is not None)


def percent_of_tokens(cell: CellSummary) -> float | None:
    """Percent of the visual tokens, averaged over the layers of the language model."""
    return None if cell.equivalent_retention is None else 100 * cell.equivalent_retention


COSTS: tuple[tuple[str, Cost], ...] = (
    ("compress + prefill, median ms", milliseconds_of),
    ("visual tokens, % averaged over the layers", percent_of_tokens),
)


def pareto(
    cells: Sequence[CellSummary],
    series: Callable[[CellSummary], str],
    styles: Styles,
    theme: Theme,
) -> Figure | None:
    """One row per benchmark: the headline over time and over tokens, 95 % intervals, fronts joined.

    Args:
        cells: Cells of one run or of several.
        series: Gives the name of a cell's series.
        styles: Colour and marker of every series but that of all tokens.
        theme: Colours.

    Returns:
        `None` where no benchmark has two cells with a cost.
    """
    scored = [cell for cell in cells if cell.headline is not None]
    benchmarks = [
        name
        for name in dict.fromkeys(cell.benchmark for cell in scored)
        if any(len(_points(scored, name, cost)) > 1 for _, cost in COSTS)
    ]
    if not benchmarks:
        return None
    rows = len(benchmarks)
    figure, panels = new_figure((11.0, 0.3 + 3.8 * rows), theme, rows=rows, columns=len(COSTS))
    for row, benchmark in enumerate(benchmarks):
        for column, (label, cost) in enumerate(COSTS):
            panel = panels[row * len(COSTS) + column]
            _panel(panel, _points(scored, benchmark, cost), series, styles, theme)
            panel.set_xlabel(label)
            if not column:
                panel.set_title(benchmark, loc="left", fontweight="bold", color=theme.foreground)
                own = [cell for cell in scored if cell.benchmark == benchmark]
                panel.set_ylabel(f"{headline_title(own)} (%)")
    return figure


def _points(
    cells: Sequence[CellSummary], benchmark: str, cost: Cost
) -> list[tuple[CellSummary, float]]:
    """The cells of a benchmark whose cost is known and above zero, with it."""
    own = [(cell, cost(cell)) for cell in cells if cell.benchmark == benchmark]
    return [(cell, value) for cell, value in own if value]


def _panel(
    panel: Axes,
    points: Sequence[tuple[CellSummary, float]],
    series: Callable[[CellSummary], str],
    styles: Styles,
    theme: Theme,
) -> None:
    """Points with intervals; those on the front ringed, joined and named."""
    if not points:
        panel.set_visible(False)
        return
    values = []
    for cell, cost in points:
        score = cell.headline
        assert score is not None
        value, low, high = (100 * part for part in (score.value, score.low, score.high))
        values.append((cost, value))
        colour, marker = (theme.foreground, "s") if cell.is_baseline else styles[series(cell)]
        panel.vlines(cost, low, high, color=colour, linewidth=1, alpha=0.28)
        panel.plot(cost, value, marker, color=colour, markersize=5, markeredgewidth=0, alpha=0.9)
    front = pareto_front(values) if are_ranked(cell for cell, _ in points) else []
    panel.plot(
        [values[index][0] for index in front],
        [values[index][1] for index in front],
        color=theme.foreground,
        linewidth=1.1,
        drawstyle="steps-post",
        alpha=0.7,
        zorder=1,
    )
    panel.scatter(
        [values[index][0] for index in front],
        [values[index][1] for index in front],
        s=72,
        facecolors="none",
        edgecolors=theme.foreground,
        linewidths=1.1,
        zorder=3,
    )
    _name(panel, [(points[index][0].name, values[index]) for index in front], theme)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(color=theme.grid, linewidth=0.6)


def _name(panel: Axes, front: Sequence[tuple[str, tuple[float, float]]], theme: Theme) -> None:
    """Numbers beside the points of a front, and what they are where a panel is emptiest."""
    for number, (_, at) in enumerate(front, 1):
        panel.annotate(
            f"{number}",
            at,
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=theme.foreground,
        )
    shown = [
        f"{number}  {shortened(name, LONGEST_NAME)}" for number, (name, _) in enumerate(front, 1)
    ]
    if len(shown) > MOST_NAMED:
        shown = [*shown[: MOST_NAMED - 1], f"and {len(shown) - MOST_NAMED + 1} more"]
    panel.text(
        0.98,
        0.04,
        "\n".join(shown),
        transform=panel.transAxes,
        ha="right",
        va="bottom",
        multialignment="left",
        fontsize=8,
        color=theme.foreground,
        bbox={"facecolor": theme.background, "edgecolor": theme.grid, "alpha": 0.85},
    )
