"""Whether coverage predicts the score: rank correlations over the cells of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from jobs.analysis.figures.coverage import correlation_bars
from jobs.analysis.page import Drawing, Table
from tango_core.analysis.correlation import rank_correlation
from tango_core.analysis.coverage import TAIL, CoverageTotals

# Cells that a correlation within a group is made of, at least.
_FEWEST = 4


@dataclass(frozen=True)
class Measured:
    """A cell with its coverage and its score.

    Attributes:
        series: Name of the cell without the retention.
        retention: Asked for, in (0, 1].
        total: Its coverage.
        score: In the run, in [0, 1].
    """

    series: str
    retention: float
    total: CoverageTotals
    score: float


@dataclass(frozen=True)
class Correlations:
    """What a page says about them."""

    findings: Sequence[str]
    drawings: Sequence[Drawing]
    table: Table


_MEASURES: dict[str, Callable[[Measured], float]] = {
    "mean cosine": lambda one: one.total.mean,
    f"worst {100 * TAIL:g} %": lambda one: one.total.tail,
    "worst token": lambda one: one.total.worst,
    "tokens kept": lambda one: one.total.retention,
}


def correlations(cells: Sequence[Measured], title: str) -> Correlations:
    """Rank correlation of scores with coverage: over all cells, within methods and retentions.

    Args:
        cells: What is correlated.
        title: What readers call the score.
    """
    retentions = sorted({one.retention for one in cells})
    groups: list[tuple[str, list[list[Measured]]]] = [
        ("all cells", [list(cells)]),
        (
            "retentions of one method (mean over methods)",
            [[c for c in cells if c.series == name] for name in {c.series for c in cells}],
        ),
        (
            "methods at one retention (mean over retentions)",
            [[c for c in cells if c.retention == share] for share in retentions],
        ),
        *(
            (f"methods at retention {share:g}", [[c for c in cells if c.retention == share]])
            for share in retentions
        ),
    ]
    rows: list[tuple[str, int, list[float]]] = []
    for name, parts in groups:
        large = [part for part in parts if len(part) >= _FEWEST]
        if large:
            values = [_mean_rho(large, measure) for measure in _MEASURES.values()]
            rows.append((name, sum(map(len, large)), values))
    findings = [
        f"rank correlation with {title}, {name}: mean cosine {_text(values[0])}, worst "
        f"{100 * TAIL:g} % {_text(values[1])}, worst token {_text(values[2])}, tokens kept alone "
        f"{_text(values[3])} ({number} cells)"
        for name, number, values in rows[:3]
    ]
    bars = [(name, values) for name, _, values in rows]
    return Correlations(
        findings,
        [
            Drawing(
                "correlation",
                f"Rank correlation with {title}",
                f"Spearman's rho over the cells of the run, 1 if coverage orders them as {title} "
                "does. Grey: what the number of tokens alone says.",
                partial(correlation_bars, bars, list(_MEASURES), title),
            )
        ]
        if bars
        else [],
        Table(
            "correlation",
            f"Rank correlation with {title}",
            f"Spearman's rho; groups of fewer than {_FEWEST} cells are left out. A dash: all "
            "numbers are equal.",
            ["among", "cells", *_MEASURES],
            [[name, str(number), *map(_text, values)] for name, number, values in rows],
        ),
    )


def _mean_rho(parts: Sequence[Sequence[Measured]], measure: Callable[[Measured], float]) -> float:
    """The correlation averaged over groups; NaN if there is none in any."""
    found = [
        rho
        for part in parts
        if (rho := rank_correlation([measure(c) for c in part], [c.score for c in part]))
        is not None
    ]
    return fmean(found) if found else math.nan


def _text(value: float) -> str:
    """Two digits with a true minus; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
