"""The plot of a report as SVG: panels of 340 units, text of 12 units, in light and dark.

A panel is at most about 500 pixels wide on a page, so its text is as large as on a phone or larger.
A legend is a panel of its own and covers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.ticker import LogLocator, MaxNLocator

from jobs.report.formatting import Html, escaped, interval, percent, shortened
from jobs.results.cell_summary import CellSummary, metric_title
from jobs.results.quantities import are_ranked
from tango_core.metrics import Estimate

WIDTH, _HEIGHT = 340, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 26, 40
# Letters that fit a line of a panel.
MOST_LETTERS = 50
_ROW = 19
# Shapes around (0, 0), one per series in turn.
_SHAPES = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4-4h8v8h-8z",
    "M0-5.5l5 9h-10z",
    "M0-5.5l5 5.5-5 5.5-5-5.5z",
    "M0 5.5l5-9h-10z",
    "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
    "M-5 0l2.5-4.5h5l2.5 4.5-2.5 4.5h-5z",
    "M-5-5h10l-3.4 5 3.4 5h-10l3.4-5z",
)
# Colours by name for pages and files: in light, and in dark. Those of series have a contrast of at
# least 3 with the paper.
COLOURS = {
    "paper": ("#ffffff", "#171c22"),
    "ink": ("#1f2933", "#dfe5eb"),
    "soft": ("#52606d", "#a3b0bd"),
    "line": ("#dde3e9", "#2f3943"),
    "s0": ("#0072b2", "#4db2ec"),
    "s1": ("#c04f00", "#ff8c42"),
    "s2": ("#007a59", "#2fc99a"),
    "s3": ("#b0467f", "#ec9fcb"),
    "s4": ("#8a6500", "#e6c04a"),
    "s5": ("#5b4bb7", "#a9a1ff"),
    "s6": ("#882255", "#d37aa6"),
    "s7": ("#52707e", "#9fb3c0"),
}
NUM_COLOURS = 8
STYLE = """
.panel { color: var(--ink); }
.panel text { font: 12px system-ui, Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
.panel .title { font-weight: 600; }
.panel .grid { stroke: var(--line); }
.panel .guide { stroke: var(--ink); stroke-dasharray: 5 3; }
.panel .band { fill: var(--ink); opacity: .08; }
.panel .front { stroke: var(--ink); fill: none; }
.panel .faint { opacity: .45; }
.panel .mark { fill: currentColor; stroke: var(--paper); stroke-width: .8; }
.panel .range { stroke: currentColor; stroke-width: 1.4; }
""" + "".join(f".s{at} {{ color: var(--s{at}); }}\n" for at in range(NUM_COLOURS))


def variables(theme: int) -> str:
    """CSS variables of a theme: 0 for light, 1 for dark."""
    return " ".join(f"--{name}: {both[theme]};" for name, both in COLOURS.items())


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`; with `log`, equal ratios have equal lengths."""

    low: float
    high: float
    title: str = ""
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], title: str, *, log: bool = False) -> Axis:
        """An axis over values (positive ones if `log`) with a margin at both ends."""
        low, high = min(values), max(values)
        if log:
            ratio = max(1.05, (high / low) ** 0.08)
            return cls(low / ratio, high * ratio, title, log)
        margin = 0.08 * (high - low) or 1.0
        return cls(low - margin, high + margin, title)

    def at(self, value: float) -> float:
        """Position of a value, 0 at `low` and 1 at `high`."""
        low, high, at = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return (at - low) / ((high - low) or 1)

    def ticks(self) -> dict[float, str]:
        """Values and texts of the ticks, which are round numbers."""
        wide = self.log and self.high > 4 * self.low
        locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5, steps=[1, 2, 5, 10])
        values = [float(value) for value in locator.tick_values(self.low, self.high)]
        inside = [value for value in values if self.low <= value <= self.high]
        return {value: f"{value:g}".replace("-", "\N{MINUS SIGN}") for value in inside}


class Panel:
    """One chart that is being drawn.

    Args:
        title: Text above it.
        x: Horizontal axis.
        y: Vertical axis.
    """

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self.title, self.x, self.y = title, x, y
        self._parts: list[str] = []
        bottom = _TOP + _HEIGHT
        for value, label in x.ticks().items():
            at = self.across(value)
            self._parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom:.1f}"/>')
            self._text(at, bottom + 15, label, "middle")
        for value, label in y.ticks().items():
            at = self.down(value)
            self._parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
            self._text(_LEFT - 6, at + 4, label, "end")
        self._text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 32, x.title, "middle")
        self._text(4, 14, shortened(title, MOST_LETTERS), "start", ' class="title"')

    def across(self, value: float) -> float:
        """Horizontal position of a value."""
        return _LEFT + self.x.at(value) * (WIDTH - _RIGHT - _LEFT)

    def down(self, value: float) -> float:
        """Vertical position of a value."""
        return _TOP + (1 - self.y.at(value)) * _HEIGHT

    def _text(self, x: float, y: float, text: str, anchor: str, kind: str = "") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f"<text{kind} {place}>{escaped(text)}</text>")

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Connect points."""
        places = " L".join(f"{self.across(x):.1f} {self.down(y):.1f}" for x, y in points)
        self._parts.append(f'<path class="{kind}" fill="none" d="M{places}"/>')

    def band(self, low: float, high: float) -> None:
        """Fill the area between two heights."""
        top = self.down(high)
        size = f'width="{WIDTH - _RIGHT - _LEFT:.1f}" height="{self.down(low) - top:.1f}"'
        self._parts.append(f'<rect class="band" x="{_LEFT:.1f}" y="{top:.1f}" {size}/>')

    def mark(self, x: float, y: float, symbol: str, name: str = "") -> None:
        """Draw SVG around a point; a browser shows its name under the pointer."""
        title = f"<title>{escaped(name)}</title>" if name else ""
        place = f"translate({self.across(x):.1f} {self.down(y):.1f})"
        self._parts.append(f'<g transform="{place}">{title}{symbol}</g>')

    def svg(self) -> Html:
        """The panel."""
        return _panel(self._parts, _TOP + _HEIGHT + _BOTTOM, self.title)


RING = '<circle class="front" r="8"/>'
_FULL = f'<path class="mark" d="{_SHAPES[1]}"/>'


def _symbol(series: int) -> str:
    """The marker of a series, around (0, 0): its number gives colour and shape."""
    shape = _SHAPES[(series + series // NUM_COLOURS) % len(_SHAPES)]
    return f'<path class="mark s{series % NUM_COLOURS}" d="{shape}"/>'


def _legend(entries: Sequence[tuple[str, str]]) -> Html:
    """A panel with a symbol and a text per line."""
    parts = []
    for at, (drawn, text) in enumerate(entries):
        y = 14 + _ROW * at
        label = escaped(shortened(text, MOST_LETTERS - 4))
        parts.append(f'<g transform="translate(14 {y})">{drawn}</g>')
        parts.append(f'<text x="30" y="{y + 4}">{label}</text>')
    return _panel(parts, 10 + _ROW * len(entries), "Legend")


def _panel(parts: Sequence[str], height: float, name: str) -> Html:
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    start = f'<svg class="panel" {size} role="img" aria-label="{escaped(name)}">'
    return Html("\n".join([start, *parts, "</svg>"]))


def in_one_file(panels: Sequence[Html]) -> str:
    """All panels, two in a row, in one SVG file that contains its colours."""
    parts, top = [], 0.0
    for row in range(0, len(panels), 2):
        own = panels[row : row + 2]
        for column, panel in enumerate(own):
            parts.append(panel.replace("<svg ", f'<svg x="{column * WIDTH}" y="{top:g}" ', 1))
        top += max(float(panel.partition('height="')[2].partition('"')[0]) for panel in own)
    size = f'width="{2 * WIDTH}" height="{top:g}" viewBox="0 0 {2 * WIDTH} {top:g}"'
    style = (
        f"svg {{ {variables(0)} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {variables(1)} }} }}{STYLE}"
    )
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
    background = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return "\n".join([start, background, *parts, "</svg>\n"])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Find the points that are not dominated in cost and value.

    Args:
        points: (cost, value) pairs; lower cost and higher value are better.

    Returns:
        Indices by increasing cost; of equal points only the first.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1])):
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


class _Point(NamedTuple):
    """A cell of one panel, with its cost and the number of its series (-1 for `full`)."""

    cell: CellSummary
    score: Estimate
    cost: float
    series: int


def score_panels(cells: Sequence[CellSummary]) -> list[Html]:
    """Headline metrics with 95 % intervals over tokens and over time, two panels per benchmark.

    Cells that no other one beats in cost and score are ringed.

    Returns:
        The panels, the last one a legend; none if no cell has a score and a cost.
    """
    cells = [cell for cell in cells if cell.headline is not None]
    several = len({cell.run_id for cell in cells}) > 1
    names = [f"{cell.run_id}: {cell.series}" if several else cell.series for cell in cells]
    series = dict.fromkeys(n for n, cell in zip(names, cells, strict=True) if not cell.is_baseline)
    numbers = {name: at for at, name in enumerate(series)}
    panels = []
    for benchmark in dict.fromkeys(cell.benchmark for cell in cells):
        own = [at for at, cell in enumerate(cells) if cell.benchmark == benchmark]
        title = f"{benchmark}: {metric_title(cells[own[0]])} %"
        for axis, costs in (_tokens([cells[at] for at in own]), _time([cells[at] for at in own])):
            points = [
                _Point(cells[at], score, cost, numbers.get(names[at], -1))
                for at, cost in zip(own, costs, strict=True)
                if cost and (score := cells[at].headline)
            ]
            if points:
                panels.append(_score_panel(title, axis, points))
    if not panels:
        return []
    entries = [(_symbol(at), name) for name, at in numbers.items()]
    if any(cell.is_baseline for cell in cells):
        full = f'<g><path class="guide" d="M-9 0h18"/>{_FULL}</g>'
        entries.append((full, "full: all tokens, with its interval"))
    return [*panels, _legend([*entries, (RING, "no cell is better and cheaper")])]


def _tokens(cells: Sequence[CellSummary]) -> tuple[str, list[float | None]]:
    shares = [cell.equivalent_retention for cell in cells]
    return "visual tokens, % (average over layers)", [share and 100 * share for share in shares]


def _time(cells: Sequence[CellSummary]) -> tuple[str, list[float | None]]:
    """Whole time to the first token; without the encoder where some cell did not measure it."""
    whole = [cell.first_token_ms for cell in cells]
    if None not in whole:
        return "time to first token with vision, ms", whole
    prefill = [cell.p50("ttft") or cell.p50("prefill") for cell in cells]
    rest = [ms and ms + (c.p50("compress") or 0.0) for c, ms in zip(cells, prefill, strict=True)]
    return "prune + prefill, ms", rest


def _score_panel(title: str, axis: str, points: Sequence[_Point]) -> Html:
    """Draw one benchmark: `full` as a band, the other cells as points with their intervals."""
    ends = [100 * end for point in points for end in (point.score.low, point.score.high)]
    x = Axis.around([point.cost for point in points], axis, log=True)
    panel = Panel(title, x, Axis.around(ends, ""))
    places = [(point.cost, 100 * point.score.value) for point in points]
    lines: dict[int, list[tuple[float, float]]] = {}
    for point, place in zip(points, places, strict=True):
        if point.cell.is_baseline:
            panel.band(100 * point.score.low, 100 * point.score.high)
            panel.line([(x.low, place[1]), (x.high, place[1])], "guide")
        else:
            lines.setdefault(point.series, []).append(place)
    for number, line in lines.items():
        panel.line(sorted(line), f"range faint s{number % NUM_COLOURS}")
    for at in pareto_front(places) if are_ranked([point.cell for point in points]) else ():
        panel.mark(*places[at], RING)
    for (cell, score, cost, number), place in zip(points, places, strict=True):
        kind = "ink" if cell.is_baseline else f"s{number % NUM_COLOURS}"
        panel.line([(cost, 100 * score.low), (cost, 100 * score.high)], f"range faint {kind}")
        name = f"{cell.name}: {percent(score.value)} % ({interval(score)})"
        panel.mark(*place, _FULL if cell.is_baseline else _symbol(number), name)
    return panel.svg()
