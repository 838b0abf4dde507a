"""`tango analyze coverage`: how well kept tokens cover all tokens of a clip."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from jobs.analysis.clips import Cell, JobCells, JobClips, common_retention, series_of
from jobs.analysis.figures import (
    Points,
    draw_series,
    heat_map,
    label,
    legend_below,
    shortened,
    styles,
)
from jobs.analysis.page import Drawing, Page, Table, finish
from jobs.config.recipe import Job, RecipeError
from jobs.report.theme import Theme, legend_above, new_figure
from jobs.results.answer_columns import AnswerColumns, metric_of, scores_of
from jobs.results.cell_summary import SCORE
from jobs.results.reduction import parts_of
from tango_core.analysis.correlation import rank_correlation
from tango_core.analysis.coverage import TAIL, TIME_PARTS, CoverageTotals, nearest_kept
from tango_core.metrics import ACCURACY

# Maximum number of methods with maps; minimum number of cells of a correlation within a group.
_MOST_MAPS, _FEWEST = 6, 4
# Column of `measured` -> its name on the page.
_MEASURES = {
    "mean": "mean cosine",
    "tail": f"worst {100 * TAIL:g} %",
    "worst": "worst token",
    "kept": "tokens kept",
}


@dataclass(frozen=True)
class CellScores:
    """The scores of a run on some clips.

    Attributes:
        title: Name of the score in texts; "score" if the benchmarks have different ones.
        by_cell: Maps a cell's name to its mean score, in [0, 1].
    """

    title: str = ACCURACY.title
    by_cell: Mapping[str, float] = field(default_factory=dict)


def cell_scores(run: Path, benchmarks: Mapping[str, Collection[str]]) -> CellScores:
    """Mean scores of a run's cells on some clips; failed and unparsed answers score 0.

    The score is each benchmark's headline metric, or accuracy if that has no value per question.

    Args:
        run: Directory of a finished run.
        benchmarks: Video ids of the clips to score, by benchmark.

    Raises:
        RecipeError: If the run has no questions about these clips.
        FileNotFoundError: If the run has no answers.
        DamagedFileError: If a file of the run is damaged.
    """
    metrics = {name: metric_of(name) for name in benchmarks}
    found: dict[str, list[float]] = {}
    for table in parts_of(run).whole_clips():
        columns = AnswerColumns(table)
        wanted = np.array([video in benchmarks.get(name, ()) for name, video in columns.clip_names])
        for number, (benchmark, cell) in enumerate(columns.cell_names):
            if benchmark in metrics:
                own = (columns.cells == number) & wanted[columns.clips]
                values = scores_of(columns, metrics[benchmark])[own]
                found.setdefault(cell, []).extend(values[~np.isnan(values)].tolist())
    known = {cell: fmean(own) for cell, own in found.items() if own}
    if not known:
        raise RecipeError(
            f"{run} has no scored answers about these clips; give a run that asked about them"
        )
    titles = {metric.title for metric in metrics.values()}
    return CellScores(titles.pop() if len(titles) == 1 else SCORE, known)


def analyze_coverage(
    job: Job, folder: Path, cache_root: str, console: Console, *, run: Path | None = None
) -> int:
    """Measure how well the tokens kept by a recipe's methods cover all tokens of its clips.

    Args:
        job: Its benchmarks, model, methods, limit, shard and cache are used.
        folder: Receives the page.
        cache_root: Directory or URL of the caches.
        console: Where to print.
        run: A run of this recipe whose scores are correlated with coverage; `None` for none.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If no clip could be decoded, a method needs a signal that the encoder lacks, or
            the run has no answers about these clips.
    """
    clips = JobClips(job, cache_root)
    cells = JobCells(clips)
    totals = {cell.cache: CoverageTotals() for cell in cells.cells}
    analysed: dict[str, set[str]] = {}
    for row, features, plans in cells.planned():
        for name, total in totals.items():
            video = plans[name].apply(features.tokens)
            total.add(nearest_kept(features.tokens, video), video.num_kept, features.grid)
        analysed.setdefault(row.benchmark, set()).add(row.video_id)
    subtitle = clips.subtitle(sum(map(len, analysed.values())))
    scores = CellScores() if run is None else cell_scores(run, analysed)
    return finish(_page(cells, totals, scores, subtitle), clips, folder, console)


def measured(
    cells: Sequence[Cell], totals: Mapping[str, CoverageTotals], scores: Mapping[str, float]
) -> pd.DataFrame:
    """One row per scored cell: series, requested retention, coverage measures and score."""
    rows = []
    for cell in cells:
        if cell.name in scores:
            one = totals[cell.cache]
            numbers = one.mean, one.tail, one.worst, one.retention, scores[cell.name]
            rows.append((cell.series, cell.retention, *numbers))
    return pd.DataFrame(rows, columns=["series", "retention", *_MEASURES, "score"])


def correlations(cells: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of scores with coverage: over all cells, per method and per retention.

    Args:
        cells: Result of `measured`.

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
            rhos = pd.DataFrame(
                [
                    {
                        one: rank_correlation(part[one].tolist(), part["score"].tolist())
                        for one in _MEASURES
                    }
                    for part in large
                ],
                dtype=float,
            )
            rows[name] = {"cells": sum(map(len, large)), **rhos.mean().to_dict()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["cells", *_MEASURES])


def _rho(value: float) -> str:
    """Format with two digits and a minus sign; a dash for NaN."""
    return "-" if np.isnan(value) else f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _page(
    cells: JobCells, totals: Mapping[str, CoverageTotals], scores: CellScores, subtitle: str
) -> Page:
    series = series_of(cells.cells)
    share = common_retention(cells.cells)
    chosen = {
        name: totals[cell.cache]
        for name, own in series.items()
        for cell in own
        if cell.retention == share
    }
    curves = {name: [totals[cell.cache] for cell in own] for name, own in series.items()}
    (other, low), *_, (name, one) = sorted([*chosen.items()] * 2, key=lambda pair: pair[1].mean)
    findings = [
        f"at retention {share:g}: highest mean cosine {name} ({one.mean:.3f} with "
        f"{100 * one.retention:.1f} % kept), lowest {other} ({low.mean:.3f} with "
        f"{100 * low.retention:.1f} %)"
    ]
    drawings = [
        Drawing(
            "over_tokens",
            "Coverage over tokens kept",
            "For every token, the cosine to the nearest kept token anywhere in the clip; kept "
            "tokens as they enter the language model. Thin grey lines: further methods, see "
            "the table.",
            partial(_over_tokens, curves),
        ),
        Drawing(
            "along_the_clip",
            f"Along the clip, at retention {share:g}",
            f"Clips are divided into {TIME_PARTS} parts of equal length.",
            partial(_along_the_clip, chosen),
        ),
        Drawing(
            "over_the_frame",
            f"Over the frame, at retention {share:g}",
            "Mean over all frames above, the worst token of all clips below; one scale per row. "
            f"The first {_MOST_MAPS} methods; all are in by_place.csv.",
            partial(_over_the_frame, dict(list(chosen.items())[:_MOST_MAPS])),
        ),
    ]
    tables = [_cells_table(cells.cells, totals, scores)]
    compared = measured([cell for own in series.values() for cell in own], totals, scores.by_cell)
    if len(compared):
        found = correlations(compared)
        findings += [
            f"rank correlation with {scores.title}, {group}: mean cosine {_rho(row['mean'])}, "
            f"worst {100 * TAIL:g} % {_rho(row['tail'])}, worst token {_rho(row['worst'])}, "
            f"tokens kept alone {_rho(row['kept'])} ({row['cells']:.0f} cells)"
            for group, row in found[:3].iterrows()
        ]
        if len(found):
            drawings.append(
                Drawing(
                    "correlation",
                    f"Rank correlation with {scores.title}",
                    "Spearman's rho over the cells of the run, 1 if coverage orders them as "
                    f"{scores.title} does. Grey: what the number of tokens alone says.",
                    partial(_correlation_bars, found, scores.title),
                )
            )
            rows = [
                {
                    "among": str(group),
                    "cells": f"{row['cells']:.0f}",
                    **{title: _rho(row[one]) for one, title in _MEASURES.items()},
                }
                for group, row in found.iterrows()
            ]
            table = Table(
                "correlation",
                f"Rank correlation with {scores.title}",
                f"Spearman's rho; groups of fewer than {_FEWEST} cells are left out. A dash: all "
                "numbers are equal.",
                rows,
            )
            tables.insert(0, table)
        drawings.append(
            Drawing(
                "beside_score",
                f"Beside {scores.title}",
                "One point per cell of the run. Right: what the number of tokens alone says.",
                partial(_beside_score, compared, scores.title),
            )
        )
    tables += [_by_time(cells.cells, totals), _by_place(cells.cells, totals)]
    return Page(
        title="Coverage: how well kept tokens stand for all",
        subtitle=subtitle,
        findings=findings,
        notes=cells.notes,
        drawings=drawings,
        tables=tables,
    )


def _cells_table(
    cells: list[Cell], totals: Mapping[str, CoverageTotals], scores: CellScores
) -> Table:
    rows = []
    for cell in cells:
        one = totals[cell.cache]
        row = {
            "cell": cell.name,
            "asked %": f"{100 * cell.retention:g}",
            "kept %": f"{100 * one.retention:.2f}",
            "mean": f"{one.mean:.4f}",
            f"worst {100 * TAIL:g} %": f"{one.tail:.4f}",
            "worst": f"{one.worst:.4f}",
        }
        if scores.by_cell:
            score = scores.by_cell.get(cell.name)
            row[f"{scores.title} %"] = "-" if score is None else f"{100 * score:.1f}"
        rows.append(row)
    return Table(
        "coverage",
        "Every cell",
        "Cosine of a token to the nearest kept one: mean over all tokens, mean over the worst "
        f"{100 * TAIL:g} % of a clip, worst token of a clip; each averaged over clips.",
        rows,
        shown=200,
    )


def _by_time(cells: list[Cell], totals: Mapping[str, CoverageTotals]) -> Table:
    rows = [
        {"cell": cell.name, "part": str(part + 1), "mean": f"{mean:.4f}", "worst": f"{worst:.4f}"}
        for cell in cells
        for part, mean, worst in totals[cell.cache].by_time
    ]
    caption = f"Part of the clip from 1 to {TIME_PARTS}; worst: of all tokens of all clips there."
    return Table("by_time", "Along the clip", caption, rows, shown=8)


def _by_place(cells: list[Cell], totals: Mapping[str, CoverageTotals]) -> Table:
    rows = []
    for cell in cells:
        _, mean, worst = totals[cell.cache].by_place
        rows += [
            {
                "cell": cell.name,
                "row": str(y),
                "column": str(x),
                "mean": f"{float(mean[y, x]):.4f}",
                "worst": f"{float(worst[y, x]):.4f}",
            }
            for y, x in np.ndindex(*mean.shape)
        ]
    caption = "Of the grid of most frames; worst: of all tokens of all clips there."
    return Table("by_place", "Over the frame", caption, rows, shown=8)


def _over_tokens(series: Mapping[str, Sequence[CoverageTotals]], theme: Theme) -> Figure:
    """Mean cosine of all tokens and of the worst tokens over the actual share of kept tokens."""
    figure, (left, right) = new_figure((11.4, 5.0), theme, columns=2)
    for panel, measure, title in (
        (left, "mean", "mean over all tokens"),
        (right, "tail", f"mean over the worst {100 * TAIL:g} %"),
    ):
        points: dict[str, Points] = {
            name: [(100 * one.retention, getattr(one, measure)) for one in totals]
            for name, totals in series.items()
        }
        draw_series(panel, points, theme)
        label(panel, theme, title, "tokens kept (%)", "cosine to the nearest kept token")
    legend_below(figure, left, theme)
    return figure


def _along_the_clip(totals: Mapping[str, CoverageTotals], theme: Theme) -> Figure:
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


def _over_the_frame(totals: Mapping[str, CoverageTotals], theme: Theme) -> Figure:
    """Maps of the mean (top) and the worst cosine (bottom), one column per method."""
    columns = len(totals)
    (height, width), _, _ = next(iter(totals.values())).by_place
    tall = max(0.6, min(1.6, height / width))
    size = 2.9 * columns + 0.4, 2 * (2.3 * tall + 0.5)
    figure, panels = new_figure(size, theme, rows=2, columns=columns)
    means = {name: one.by_place[1].numpy() for name, one in totals.items()}
    worsts = {name: one.by_place[2].numpy() for name, one in totals.items()}
    for row, (what, values) in enumerate((("mean", means), ("worst", worsts))):
        low = min(float(value.min()) for value in values.values())
        high = max(float(value.max()) for value in values.values())
        limits = low, max(high, low + 1e-3)
        for column, (name, value) in enumerate(values.items()):
            panel = panels[row * columns + column]
            title = f"{shortened(name, 20)}: {what}"
            heat_map(figure, panel, value, theme, title=title, scale="", limits=limits)
            panel.set_xlabel("")
            panel.set_ylabel("")
    return figure


def _beside_score(cells: pd.DataFrame, title: str, theme: Theme) -> Figure:
    """Score of every cell over its coverage, one colour per series."""
    figure, panels = new_figure((13.0, 4.9), theme, columns=3)
    known = styles(list(cells["series"].unique()), theme)
    for panel, measure, x in zip(
        panels,
        ("mean", "tail", "kept"),
        ("mean cosine", f"mean cosine of the worst {100 * TAIL:g} %", "tokens kept (share)"),
        strict=True,
    ):
        for name, own in cells.groupby("series", sort=False):
            colour, marker = known.get(str(name), (theme.foreground, "."))
            panel.scatter(
                own[measure],
                100 * own["score"],
                s=30 if name in known else 16,
                color=colour,
                marker=marker,
                alpha=0.9 if name in known else 0.45,
                linewidths=0,
                label=shortened(str(name)) if name in known else None,
            )
        label(panel, theme, x=x, y=f"{title} (%)")
    legend_below(figure, panels[0], theme, columns=5)
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
    legend_above(figure, panel, theme)
    return figure
