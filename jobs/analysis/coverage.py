"""`tango analyze coverage`: how well kept tokens stand for all, before any answer is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs.analysis.answered import CellScores, cell_scores
from jobs.analysis.cells import Cell, JobCells, common_retention, series_of
from jobs.analysis.clips import JobClips
from jobs.analysis.command import Places, finish, subtitle
from jobs.analysis.correlations import Measured, correlations
from jobs.analysis.figures.coverage import (
    along_the_clip,
    beside_score,
    over_the_frame,
    over_tokens,
)
from jobs.analysis.page import Drawing, Page, Table
from jobs.config.recipe import Job
from tango_core.analysis.coverage import TAIL, TIME_PARTS, CoverageTotals, nearest_kept

# Methods whose maps are drawn.
_MOST_MAPS = 6


def analyze_coverage(job: Job, run: Path | None, places: Places, console: Console) -> int:
    """Compare all tokens of a recipe's clips with the tokens that its methods keep.

    Args:
        job: Its benchmarks, model, methods, limit, shard and cache are used.
        run: A run of this recipe, whose scores are compared; `None` for none.
        places: Where to read and write.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If no clip could be decoded, a method needs a signal that the encoder lacks, or
            the run has no answers about these clips.
    """
    clips = JobClips(job, places.cache_root)
    cells = JobCells(clips)
    totals = {cell.cache: CoverageTotals() for cell in cells.cells}
    looked_at: dict[str, set[str]] = {}
    for row in clips.rows():
        features = clips.features_of(row, cells.needs)
        if features is None:
            continue
        plans = cells.plans(features)
        for name, total in totals.items():
            video = plans[name].apply(features.tokens)
            total.add(nearest_kept(features.tokens, video), video.num_kept, features.grid)
        looked_at.setdefault(row.benchmark, set()).add(row.video_id)
    number = sum(map(len, looked_at.values()))
    clips.raise_if_none(number)
    scores = CellScores() if run is None else cell_scores(run, looked_at)
    about = subtitle(clips, number)
    page = _page(cells, totals, scores, about)
    return finish(page, job, clips, places.folder, console)


def _page(
    cells: JobCells, totals: Mapping[str, CoverageTotals], scores: CellScores, about: str
) -> Page:
    """What was found."""
    series = series_of(cells.cells)
    share = common_retention(cells.cells)
    chosen = {
        name: totals[cell.cache]
        for name, own in series.items()
        for cell in own
        if cell.retention == share
    }
    curves = {name: [totals[cell.cache] for cell in own] for name, own in series.items()}
    compared = [
        Measured(cell.series, cell.retention, totals[cell.cache], scores.by_cell[cell.name])
        for own in series.values()
        for cell in own
        if cell.name in scores.by_cell
    ]
    findings = [
        f"at retention {share:g}: highest mean cosine {name} ({one.mean:.3f} with "
        f"{100 * one.retention:.1f} % kept), lowest {other} ({low.mean:.3f} with "
        f"{100 * low.retention:.1f} %)"
        for (name, one), (other, low) in [_extremes(chosen)]
    ]
    drawings = [
        Drawing(
            "over_tokens",
            "Coverage over tokens kept",
            "For every token the cosine to the nearest kept one, wherever in the clip that is; "
            "kept tokens as they enter the language model. Thin grey lines: further methods, see "
            "the table.",
            partial(over_tokens, curves),
        ),
        Drawing(
            "along_the_clip",
            f"Along the clip, at retention {share:g}",
            f"Clips are divided into {TIME_PARTS} parts of equal length.",
            partial(along_the_clip, chosen),
        ),
        Drawing(
            "over_the_frame",
            f"Over the frame, at retention {share:g}",
            "Mean over all frames above, the worst token of all clips below; one scale per row. "
            f"The first {_MOST_MAPS} methods; all are in by_place.csv.",
            partial(over_the_frame, dict(list(chosen.items())[:_MOST_MAPS])),
        ),
    ]
    tables = [_cells_table(cells.cells, totals, scores)]
    if compared:
        found = correlations(compared, scores.title)
        findings += found.findings
        drawings += found.drawings
        drawings.append(
            Drawing(
                "beside_score",
                f"Beside {scores.title}",
                "One point per cell of the run. Right: what the number of tokens alone says.",
                partial(
                    beside_score,
                    [(one.series, one.total, one.score) for one in compared],
                    scores.title,
                ),
            )
        )
        tables = [*([found.table] if found.table.rows else []), *tables]
    tables += [_by_time(cells.cells, totals), _by_place(cells.cells, totals)]
    return Page(
        title="Coverage: how well kept tokens stand for all",
        subtitle=about,
        findings=findings,
        notes=cells.notes,
        drawings=drawings,
        tables=tables,
    )


def _extremes(
    chosen: Mapping[str, CoverageTotals],
) -> tuple[tuple[str, CoverageTotals], tuple[str, CoverageTotals]]:
    """The series of the highest and of the lowest mean."""
    order = sorted(chosen.items(), key=lambda one: one[1].mean)
    return order[-1], order[0]


def _cells_table(
    cells: list[Cell], totals: Mapping[str, CoverageTotals], scores: CellScores
) -> Table:
    """All cells."""
    rows = []
    for cell in cells:
        one = totals[cell.cache]
        row = [
            cell.name,
            f"{100 * cell.retention:g}",
            f"{100 * one.retention:.2f}",
            f"{one.mean:.4f}",
            f"{one.tail:.4f}",
            f"{one.worst:.4f}",
        ]
        if scores.by_cell:
            score = scores.by_cell.get(cell.name)
            row.append("-" if score is None else f"{100 * score:.1f}")
        rows.append(row)
    columns = ["cell", "asked %", "kept %", "mean", f"worst {100 * TAIL:g} %", "worst"]
    return Table(
        "coverage",
        "Every cell",
        "Cosine of a token to the nearest kept one: mean over all tokens, mean over the worst "
        f"{100 * TAIL:g} % of a clip, worst token of a clip; each averaged over clips.",
        [*columns, *([f"{scores.title} %"] if scores.by_cell else [])],
        rows,
        shown=200,
    )


def _by_time(cells: list[Cell], totals: Mapping[str, CoverageTotals]) -> Table:
    """All cells along the clip."""
    return Table(
        "by_time",
        "Along the clip",
        f"Part of the clip from 1 to {TIME_PARTS}; worst: of all tokens of all clips there.",
        ["cell", "part", "mean", "worst"],
        [
            [cell.name, str(part + 1), f"{mean:.4f}", f"{worst:.4f}"]
            for cell in cells
            for part, mean, worst in totals[cell.cache].by_time
        ],
        shown=8,
    )


def _by_place(cells: list[Cell], totals: Mapping[str, CoverageTotals]) -> Table:
    """All cells over the frame."""
    rows = []
    for cell in cells:
        (height, width), mean, worst = totals[cell.cache].by_place
        rows += [
            [cell.name, str(y), str(x), f"{float(mean[y, x]):.4f}", f"{float(worst[y, x]):.4f}"]
            for y in range(height)
            for x in range(width)
        ]
    return Table(
        "by_place",
        "Over the frame",
        "Of the grid of most frames; worst: of all tokens of all clips there.",
        ["cell", "row", "column", "mean", "worst"],
        rows,
        shown=8,
    )
