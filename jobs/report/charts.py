"""Charts as SVG: panels of 340 units, text of 12 units, colours of the page in light and dark.

A panel is at most about 500 pixels wide on a page, so its text is as large as on a phone or larger.
A legend is a panel of its own and covers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.ticker import LogLocator, MaxNLocator

from jobs.report.formatting import Html, escaped, shortened

WIDTH = 340
_TOP, _BOTTOM, _RIGHT = 26, 40, 12
_TEXT = 12
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
.panel .hollow { fill: var(--paper); stroke: currentColor; stroke-width: 1.4; }
.panel .range { stroke: currentColor; stroke-width: 1.4; }
""" + "".join(f".s{at} {{ color: var(--s{at}); }}\n" for at in range(NUM_COLOURS))


def variables(theme: int) -> str:
    """CSS variables of a theme: 0 for light, 1 for dark."""
    return " ".join(f"--{name}: {both[theme]};" for name, both in COLOURS.items())


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, which may be the smaller one.

    Attributes:
        low: Value at the left or lower end.
        high: Value at the other end.
        title: Text beside the axis.
        log: Whether equal ratios have equal lengths.
        labels: Value -> text of the ticks; `None` for round numbers.
    """

    low: float
    high: float
    title: str = ""
    log: bool = False
    labels: dict[float, str] | None = None

    def at(self, value: float) -> float:
        """Position of a value, 0 at `low` and 1 at `high`."""
        low, high = (math.log(x) if self.log else x for x in (self.low, self.high))
        return ((math.log(value) if self.log else value) - low) / ((high - low) or 1)

    def ticks(self) -> dict[float, str]:
        """Values and texts of the ticks."""
        if self.labels is not None:
            return self.labels
        low, high = sorted((self.low, self.high))
        wide = self.log and high > 4 * low
        locator = LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5, steps=[1, 2, 5, 10])
        values = [float(value) for value in locator.tick_values(low, high)]
        return {v: f"{v:g}".replace("-", "\N{MINUS SIGN}") for v in values if low <= v <= high}


def axis_around(values: Sequence[float], title: str, *, log: bool = False) -> Axis:
    """An axis over values (positive ones if `log`) with a margin at both ends."""
    low, high = min(values), max(values)
    if log:
        ratio = max(1.05, (high / low) ** 0.08)
        return Axis(low / ratio, high * ratio, title, log)
    margin = 0.08 * (high - low) or 1.0
    return Axis(low - margin, high + margin, title)


@dataclass
class Panel:
    """One chart that is being drawn.

    Attributes:
        title: Text above it.
        x: Horizontal axis.
        y: Vertical axis.
        height: Height of the area of the values.
        left: Room for the texts of the vertical axis.
    """

    title: str
    x: Axis
    y: Axis
    height: float = 210
    left: float = 40
    _parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw grid, ticks and titles."""
        bottom = _TOP + self.height
        for value, label in self.x.ticks().items():
            x = self.across(value)
            self._parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom:.1f}"/>')
            self.text(x, bottom + 15, label, "middle")
        for value, label in self.y.ticks().items():
            y = self.down(value)
            if self.y.labels is None:
                self._parts.append(
                    f'<path class="grid" d="M{self.left} {y:.1f}H{WIDTH - _RIGHT}"/>'
                )
            self.text(self.left - 6, y + 4, label, "end")
        self.text((self.left + WIDTH - _RIGHT) / 2, bottom + 32, self.x.title, "middle")
        self.text(4, 14, shortened(self.title, MOST_LETTERS), "start", "title")

    def across(self, value: float) -> float:
        """Horizontal position of a value."""
        return self.left + self.x.at(value) * (WIDTH - _RIGHT - self.left)

    def down(self, value: float) -> float:
        """Vertical position of a value."""
        return _TOP + (1 - self.y.at(value)) * self.height

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        """Write a text."""
        name = f' class="{kind}"' if kind else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f"<text{name} {place}>{escaped(text)}</text>")

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Connect points."""
        places = " L".join(f"{self.across(x):.1f} {self.down(y):.1f}" for x, y in points)
        self._parts.append(f'<path class="{kind}" fill="none" d="M{places}"/>')

    def box(self, x: tuple[float, float], y: tuple[float, float], kind: str) -> None:
        """Fill an area."""
        left, right = sorted(map(self.across, x))
        top, bottom = sorted(map(self.down, y))
        size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
        self._parts.append(f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" {size}/>')

    def mark(self, x: float, y: float, symbol: str, name: str = "") -> None:
        """Draw a symbol; a browser shows its name under the pointer.

        Args:
            x: Value.
            y: Value.
            symbol: SVG around (0, 0), such as `symbol` gives.
            name: What it is.
        """
        title = f"<title>{escaped(name)}</title>" if name else ""
        place = f"translate({self.across(x):.1f} {self.down(y):.1f})"
        self._parts.append(f'<g transform="{place}">{title}{symbol}</g>')

    def svg(self) -> Html:
        """The panel."""
        return _panel(self._parts, _TOP + self.height + _BOTTOM, self.title)


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """A panel with a symbol and a text per line.

    Args:
        entries: SVG of the symbol around (0, 0), such as `symbol` gives, and the text.
    """
    parts = []
    for at, (drawn, text) in enumerate(entries):
        y = 14 + _ROW * at
        parts.append(f'<g transform="translate(14 {y})">{drawn}</g>')
        parts.append(
            f'<text x="30" y="{y + 4}">{escaped(shortened(text, MOST_LETTERS - 4))}</text>'
        )
    return _panel(parts, 10 + _ROW * len(entries), "Legend")


RING = '<circle class="front" r="8"/>'


def symbol(series: int, *, shape: int = -1, hollow: bool = False) -> str:
    """The marker of a series.

    Args:
        series: Number of the series, which gives colour and shape; -1 for the text's colour.
        shape: Index of a shape, if not that of the series.
        hollow: Whether only its outline is drawn.
    """
    if shape < 0:
        shape = (series + series // NUM_COLOURS) % len(_SHAPES)
    kind = ("hollow" if hollow else "mark") + (f" s{series % NUM_COLOURS}" if series >= 0 else "")
    return f'<path class="{kind}" d="{_SHAPES[shape]}"/>'


def in_one_file(panels: Sequence[Html], columns: int = 2) -> str:
    """All panels in one SVG file that contains its colours."""
    parts, top = [], 0.0
    for row in range(0, len(panels), columns):
        own = panels[row : row + columns]
        for column, panel in enumerate(own):
            parts.append(panel.replace("<svg ", f'<svg x="{column * WIDTH}" y="{top:g}" ', 1))
        top += max(float(panel.partition('height="')[2].partition('"')[0]) for panel in own)
    width = WIDTH * min(columns, len(panels))
    style = (
        f"svg {{ {variables(0)} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {variables(1)} }} }}{STYLE}"
    )
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top:g}"'
    background = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    lines = [f'{start} viewBox="0 0 {width} {top:g}"><style>{style}</style>', background]
    return "\n".join([*lines, *parts, "</svg>\n"])


def _panel(parts: Sequence[str], height: float, name: str) -> Html:
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    start = f'<svg class="panel" {size} role="img" aria-label="{escaped(name)}">'
    return Html("\n".join([start, *parts, "</svg>"]))
