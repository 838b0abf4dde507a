"""`tango analyze coverage`: how well kept tokens cover all tokens of a clip."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from jobs.analysis.clips import JobCells, JobClips, Plans, common_retention, scored_answers
from jobs.analysis.figures import Map, bar_figure, curve_figure, map_figure
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.formatting import DASH, shortened
from jobs.report.theme import Theme
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import SCORE
from pipeline.clips import Clip
from tango_core.analysis.coverage import nearest_kept, rank_correlation
from tango_core.types import VisualFeatures

# Share of a clip's worst tokens whose mean cosine is reported; parts into which a clip is divided.
TAIL, TIME_PARTS = 0.05, 8
# Maximum number of methods with maps; minimum number of cells of a correlation within a group.
_MOST_MAPS, _FEWEST = 6, 4
_TAIL = f"worst {100 * TAIL:g} %"
# Column of `Coverage.cells` -> its name on the page.
_MEASURES = {"mean": "mean cosine", "tail": _TAIL, "worst": "worst token", "kept": "tokens kept"}
_COSINES = dict.fromkeys(("mean", "worst", _TAIL), ".4f")


class Coverage:
    """Cosines of all tokens to the nearest kept token, summed over clips per token cache."""

    def __init__(self) -> None:
        self._clips: list[dict[str, Any]] = []
        self._frames: list[pd.DataFrame] = []
        # Per cache and grid: sums over frames, lowest cosines, number of frames.
        self._maps: dict[str, dict[tuple[int, int], tuple[Any, Any, int]]] = {}

    def add(self, clip: Clip, features: VisualFeatures, plans: dict[str, Plans]) -> None:
        """Add a clip's plans."""
        for cache, own in plans.items():
            for plan, _ in own:
                video = plan.apply(features.tokens)
                cosines = nearest_kept(features.tokens, video).double().cpu().numpy()
                self.add_cosines(cache, cosines, video.num_kept, features.grid)

    def add_cosines(
        self, cache: str, cosines: np.ndarray, num_kept: int, grid: tuple[int, int]
    ) -> None:
        """Add (T, L) cosines of a clip of which `num_kept` tokens are kept."""
        frames = len(cosines)
        tail = np.sort(cosines, axis=None)[: max(1, round(TAIL * cosines.size))].mean()
        means = {"mean": cosines.mean(), "tail": tail, "worst": cosines.min()}
        self._clips.append({"cache": cache, **means, "kept": num_kept, "total": cosines.size})
        rows = {"part": np.arange(frames) * TIME_PARTS // frames, "mean": cosines.mean(axis=1)}
        self._frames.append(pd.DataFrame({"cache": cache, **rows, "worst": cosines.min(axis=1)}))
        maps = self._maps.setdefault(cache, {})
        sums, worst, number = maps.get(grid, (0, 1, 0))
        worst = np.minimum(worst, cosines.min(axis=0))
        maps[grid] = sums + cosines.sum(axis=0), worst, number + frames

    def cells(self, cells: pd.DataFrame) -> pd.DataFrame:
        """`JobCells.table` with means over clips and the actual share of kept tokens."""
        groups = pd.DataFrame(self._clips).groupby("cache")
        sums = groups[["kept", "total"]].sum()
        table = groups[["mean", "tail", "worst"]].mean().assign(kept=sums["kept"] / sums["total"])
        return cells.merge(table, on="cache")

    def by_time(self, caches: pd.Series) -> pd.DataFrame:
        """Mean and worst cosine per cache and part of the clip that has frames."""
        frames = pd.concat(self._frames)
        groups = frames[frames["cache"].isin(caches)].groupby(["cache", "part"])
        return groups.agg(mean=("mean", "mean"), worst=("worst", "min")).reset_index()

    def by_position(self, cache: str) -> list[np.ndarray]:
        """(H, W) mean and worst cosines of the grid with most frames."""
        grid, (sums, worst, number) = max(self._maps[cache].items(), key=lambda one: one[1][2])
        return [(sums / number).reshape(grid), worst.reshape(grid)]


def analyze_coverage(clips: JobClips, *, run: Path | None = None) -> Page:
    """Measure how well the tokens kept by a recipe's methods cover all tokens of its clips.

    Args:
        clips: The clips of a recipe.
        run: A run of this recipe whose scores are correlated with coverage; `None` for none.

    Raises:
        RecipeError: If no clip could be decoded, a method needs a signal that the encoder lacks, or
            the run has no answers about these clips.
    """
    cells, coverage = JobCells(clips), Coverage()
    analysed: dict[str, set[str]] = {}

    def add(clip: Clip, features: VisualFeatures, plans: dict[str, Plans]) -> None:
        coverage.add(clip, features, plans)
        analysed.setdefault(clip.benchmark, set()).add(clip.video_id)

    cells.with_plans(add)
    every = coverage.cells(cells.table).assign(score=np.nan)
    if run is not None:
        answers = scored_answers(run, analysed)
        if answers.empty:
            raise RecipeError(
                f"{run} has no scored answers about these clips; give a run that asked about them"
            )
        every["score"] = every["cell"].map(answers.groupby("cell")["score"].mean())
    titles = {metric_of(benchmark).title for benchmark in analysed}
    score = titles.pop() if len(titles) == 1 else SCORE
    share = common_retention(cells.table)
    pruned = every[every["pruned"]]
    at_share = pruned[pruned["retention"] == share]
    findings, figures, tables = [], {}, {}
    if len(at_share):
        names = at_share[["series", "cache"]]
        along = names.merge(coverage.by_time(names["cache"]), on="cache")
        first = names[:_MOST_MAPS].itertuples(index=False, name=None)
        maps = {str(series): coverage.by_position(cache) for series, cache in first}
        over = pruned.sort_values("retention", kind="stable").assign(percent=100 * pruned["kept"])
        along = along.assign(percent=100 * (along["part"] + 0.5) / TIME_PARTS)
        y = "cosine to the nearest kept token"
        totals = {"mean": ("mean over all tokens", y), "tail": (f"mean over the {_TAIL}", y)}
        times = {"mean": ("mean", y), "worst": ("worst token of all clips", y)}
        in_time = ("percent", "time (% of the clip)")
        figures = {
            "over_tokens": partial(curve_figure, over, ("percent", "tokens kept (%)"), totals, {}),
            "along_the_clip": partial(curve_figure, along, in_time, times, {}),
            "over_the_frame": partial(_over_the_frame, maps),
        }
    found = correlations(pruned.dropna(subset="score"))
    if len(found):
        for group, row in found[:3].iterrows():
            rhos = ", ".join(f"{title} {_rho(row[one])}" for one, title in _MEASURES.items())
            findings.append(
                f"rank correlation with {score}, {group}: {rhos} ({row['cells']:.0f} cells)"
            )
        table = found[[*_MEASURES]].rename(columns=_MEASURES)
        texts = table.map(_rho)
        x_label = f"rank correlation with {score}"
        figures["correlation"] = partial(bar_figure, table, texts, x_label, width=0.8)
        shown = pd.concat([found["cells"].map("{:.0f}".format), texts], axis=1)
        tables["correlation"] = shown.rename_axis("among").reset_index()
    table = every[["cell", "retention", "kept", "mean", "tail", "worst", "score"]].copy()
    table[["retention", "kept", "score"]] *= 100
    table.columns = ["cell", "asked %", "kept %", "mean", _TAIL, "worst", f"{score} %"]
    if run is None:
        table = table.drop(columns=f"{score} %")
    formats = {"asked %": "g", "kept %": ".2f", **_COSINES, f"{score} %": ".1f"}
    values = {"share": share, "parts": TIME_PARTS, "maps": _MOST_MAPS, "fewest": _FEWEST}
    return Page(
        "coverage",
        findings,
        cells.notes,
        figures,
        {**tables, "coverage": as_text(table, formats)},
        {**values, "tail": f"{100 * TAIL:g} %", "score": score},
    )


def correlations(cells: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of scores with coverage: over all cells, per method and per retention.

    Args:
        cells: Rows of `Coverage.cells` with a `score`.

    Returns:
        One row per group that is large enough: the group's description (index), the number of
        `cells`, and rho of every measure, NaN if all values are equal.
    """
    shares = {f"{share:g}": own for share, own in cells.groupby("retention")}
    groups: dict[str, list[pd.DataFrame]] = {
        "all cells": [cells],
        "retentions of one method (mean over methods)": [
            own for _, own in cells.groupby("series", sort=False)
        ],
        "methods at one retention (mean over retentions)": list(shares.values()),
        **{f"methods at retention {share}": [own] for share, own in shares.items()},
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


def _over_the_frame(maps: dict[str, list[np.ndarray]], theme: Theme) -> Figure:
    """Maps of the mean (top) and the worst cosine (bottom), one column per method."""
    rows = []
    for row, what in enumerate(("mean", "worst")):
        low = min(own[row].min() for own in maps.values())
        limits = low, max(max(own[row].max() for own in maps.values()), low + 1e-3)
        names = {shortened(name, 20): own[row] for name, own in maps.items()}
        rows.append([Map(f"{n}: {what}", own, limits=limits) for n, own in names.items()])
    return map_figure(rows, "", theme)
