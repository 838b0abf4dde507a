"""`tango analyze coverage`: how well kept tokens cover all tokens of a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jobs.analysis.clips import Cell, JobCells, JobClips, common_retention, scored_answers
from jobs.analysis.figures import Points, draw_series, heat_map, label, legend_below
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.formatting import DASH, shortened
from jobs.report.theme import Theme, handles_of, legend, new_figure
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import SCORE
from tango_core.analysis.correlation import rank_correlation
from tango_core.analysis.coverage import TAIL, TIME_PARTS, CoverageTotals, nearest_kept

# Maximum number of methods with maps; minimum number of cells of a correlation within a group.
_MOST_MAPS, _FEWEST = 6, 4
_TAIL = f"worst {100 * TAIL:g} %"
# Column of `measured` -> its name on the page.
_MEASURES = {"mean": "mean cosine", "tail": _TAIL, "worst": "worst token", "kept": "tokens kept"}
_COSINES = dict.fromkeys(("mean", "worst", _TAIL), ".4f")

Totals = Mapping[str, CoverageTotals]


def analyze_coverage(clips: JobClips, *, run: Path | None = None) -> Page:
    """Measure how well the tokens kept by a recipe's methods cover all tokens of its clips.

    Args:
        clips: The clips of a recipe.
        run: A run of this recipe whose scores are correlated with coverage; `None` for none.

    Raises:
        RecipeError: If no clip could be decoded, a method needs a signal that the encoder lacks, or
            the run has no answers about these clips.
    """
    cells = JobCells(clips)
    totals = {cell.cache: CoverageTotals() for cell in cells.cells}
    analysed: dict[str, set[str]] = {}
    for row, features, plans in cells.planned():
        for name, total in totals.items():
            for plan, _ in plans[name]:
                video = plan.apply(features.tokens)
                total.add(nearest_kept(features.tokens, video), video.num_kept, features.grid)
        analysed.setdefault(row.benchmark, set()).add(row.video_id)
    titles = {metric_of(benchmark).title for benchmark in analysed}
    title = titles.pop() if len(titles) == 1 else SCORE
    scores: dict[str, float] = {}
    if run is not None:
        answers = scored_answers(run, analysed).dropna(subset="score")
        if answers.empty:
            raise RecipeError(
                f"{run} has no scored answers about these clips; give a run that asked about them"
            )
        means = answers.groupby("cell")["score"].mean()
        scores = {str(cell): float(mean) for cell, mean in means.items()}
    return _page(cells, totals, title, scores)


def measured(cells: Sequence[Cell], totals: Totals, scores: Mapping[str, float]) -> pd.DataFrame:
    """One row per cell: names, requested retention, coverage measures, and score (NaN for none)."""
    rows = []
    for cell in cells:
        one = totals[cell.cache]
        numbers = *one.means, one.retention, scores.get(cell.name)
        pruned = cell.compressor.outer_retention < 1
        rows.append((cell.name, cell.series, cell.cache, cell.retention, pruned, *numbers))
    names = ["cell", "series", "cache", "retention", "pruned"]
    frame = pd.DataFrame(rows, columns=[*names, *_MEASURES, "score"])
    return frame.astype({"score": float})


def correlations(cells: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of scores with coverage: over all cells, per method and per retention.

    Args:
        cells: Rows of `measured` with a score.

    Returns:
        One row per group that is large enough: the group's description (index), the number of
        `cells`, and rho of every measure, NaN if all values are equal.
    """
    by_retention = {f"{share!s}": own for share, own in cells.groupby("retention")}
    groups: dict[str, list[pd.DataFrame]] = {
        "all cells": [cells],
        "retentions of one method (mean over methods)": [
            own for _, own in cells.groupby("series", sort=False)
        ],
        "methods at one retention (mean over retentions)": list(by_retention.values()),
        **{f"methods at retention {float(share):g}": [own] for share, own in by_retention.items()},
    }
    rows = {}
    for name, parts in groups.items():
        large = [part for part in parts if len(part) >= _FEWEST]
        if large:
            rhos = [
                {m: rank_correlation(part[m].tolist(), part["score"].tolist()) for m in _MEASURES}
                for part in large
            ]
            means = pd.DataFrame(rhos, dtype=float).mean()
            rows[name] = {"cells": sum(map(len, large)), **means.to_dict()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["cells", *_MEASURES])


def _rho(value: float) -> str:
    """Format with two digits and a minus sign; a dash for NaN."""
    return DASH if np.isnan(value) else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _page(cells: JobCells, totals: Totals, score: str, scores: Mapping[str, float]) -> Page:
    share = common_retention(cells.cells)
    every = measured(cells.cells, totals, scores)
    at_share = every[every["pruned"] & (every["retention"] == share)]
    chosen = {
        name: totals[cache]
        for name, cache in zip(at_share["series"], at_share["cache"], strict=True)
    }
    findings, figures = [], {}
    if len(at_share):
        least, *_, best = [*at_share.sort_values("mean").to_dict("records")] * 2
        findings.append(
            f"at retention {share:g}: highest mean cosine {best['series']} ({best['mean']:.3f} "
            f"with {100 * best['kept']:.1f} % kept), lowest {least['series']} "
            f"({least['mean']:.3f} with {100 * least['kept']:.1f} %)"
        )
        figures = {
            "over_tokens": partial(_over_tokens, every[every["pruned"]]),
            "along_the_clip": partial(_along_the_clip, chosen),
            "over_the_frame": partial(_over_the_frame, dict(list(chosen.items())[:_MOST_MAPS])),
        }
    tables = {}
    scored = every[every["pruned"] & every["score"].notna()]
    found = correlations(scored)
    if len(found):
        for group, row in found[:3].iterrows():
            rhos = ", ".join(f"{title} {_rho(row[one])}" for one, title in _MEASURES.items())
            findings.append(
                f"rank correlation with {score}, {group}: {rhos} ({row['cells']:.0f} cells)"
            )
        figures["correlation"] = partial(_correlation_bars, found, score)
        texts = found[[*_MEASURES]].map(_rho).rename(columns=_MEASURES)
        texts.insert(0, "cells", found["cells"].astype(int).astype(str))
        tables["correlation"] = texts.rename_axis("among").reset_index()
    return Page(
        "coverage",
        findings,
        cells.notes,
        figures,
        {**tables, "coverage": _cells_table(every, score)},
        {
            "share": share,
            "parts": TIME_PARTS,
            "maps": _MOST_MAPS,
            "fewest": _FEWEST,
            "tail": f"{100 * TAIL:g} %",
            "score": score,
        },
    )


def _cells_table(every: pd.DataFrame, score: str) -> pd.DataFrame:
    table = pd.DataFrame(
        {
            "cell": every["cell"],
            "asked %": 100 * every["retention"],
            "kept %": 100 * every["kept"],
            "mean": every["mean"],
            _TAIL: every["tail"],
            "worst": every["worst"],
        }
    )
    if every["score"].notna().any():
        table[f"{score} %"] = 100 * every["score"]
    return as_text(table, **{"asked %": "g", "kept %": ".2f", **_COSINES, f"{score} %": ".1f"})


def _over_tokens(cells: pd.DataFrame, theme: Theme) -> Figure:
    """Mean cosine of all tokens and of the worst tokens over the actual share of kept tokens."""
    figure, (left, right) = new_figure((11.4, 5.0), theme, columns=2)
    cells = cells.sort_values("retention", kind="stable").assign(percent=100 * cells["kept"])
    titles = {"mean": "mean over all tokens", "tail": f"mean over the {_TAIL}"}
    for panel, (measure, title) in zip((left, right), titles.items(), strict=True):
        points: dict[str, Points] = {
            str(name): own[["percent", measure]].to_numpy().tolist()
            for name, own in cells.groupby("series", sort=False)
        }
        draw_series(panel, points, theme)
        label(panel, theme, title, "tokens kept (%)", "cosine to the nearest kept token")
    legend_below(figure, left, theme)
    return figure


def _along_the_clip(totals: Totals, theme: Theme) -> Figure:
    """Mean and worst cosine in every part of the clip."""
    figure, (left, right) = new_figure((11.4, 4.6), theme, columns=2)
    for panel, column, title in ((left, 1, "mean"), (right, 2, "worst token of all clips")):
        points: dict[str, Points] = {
            name: [(100 * (part[0] + 0.5) / TIME_PARTS, part[column]) for part in one.by_time]
            for name, one in totals.items()
        }
        draw_series(panel, points, theme)
        panel.set_xlim(0, 100)
        label(panel, theme, title, "time (% of the clip)", "cosine to the nearest kept token")
    legend_below(figure, left, theme)
    return figure


def _over_the_frame(totals: Totals, theme: Theme) -> Figure:
    """Maps of the mean (top) and the worst cosine (bottom), one column per method."""
    columns = len(totals)
    maps = [one.by_place[1:] for one in totals.values()]
    height, width = maps[0][0].shape
    tall = max(0.6, min(1.6, height / width))
    size = 2.9 * columns + 0.4, 2 * (2.3 * tall + 0.5)
    figure, panels = new_figure(size, theme, rows=2, columns=columns)
    for row, what in enumerate(("mean", "worst")):
        values = [own[row].numpy() for own in maps]
        low, high = min(map(np.min, values)), max(map(np.max, values))
        limits = float(low), max(float(high), float(low) + 1e-3)
        for column, name in enumerate(totals):
            panel = panels[row * columns + column]
            title = f"{shortened(name, 20)}: {what}"
            heat_map(figure, panel, values[column], theme, title=title, scale="", limits=limits)
    return figure


def _correlation_bars(found: pd.DataFrame, title: str, theme: Theme) -> Figure:
    """Bars of rank correlations with the score: of coverage, and of the number of tokens."""
    figure, (panel,) = new_figure((9.6, 1.5 + 0.78 * len(found)), theme)
    places = np.arange(len(found))
    colours = (*theme.series[: len(_MEASURES) - 1], theme.series[7])
    for number, (measure, colour) in enumerate(zip(_MEASURES, colours, strict=True)):
        shift = 0.21 * (number - (len(_MEASURES) - 1) / 2)
        values = found[measure].tolist()
        known = _MEASURES[measure]
        bars = panel.barh(places + shift, values, height=0.2, color=colour, label=known)
        texts = [_rho(value) for value in values]
        panel.bar_label(bars, texts, padding=3, fontsize=8.5, color=theme.foreground)
    panel.set_yticks(places, [str(group) for group in found.index])
    panel.invert_yaxis()
    panel.axvline(0, color=theme.foreground, linewidth=0.8)
    panel.set_xlim(min(-0.05, found[list(_MEASURES)].min().min()), 1.1)
    label(panel, theme, x=f"rank correlation with {title}", grid="x")
    legend(figure, handles_of([panel]), theme)
    return figure
