"""`tango analyze coverage` and `evidence`: how well kept tokens represent all tokens.

`coverage` measures the cosine of every token to the nearest kept token. `evidence` measures how
many tokens of the object that a question is about are kept (`tango_core.analysis.evidence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from jobs.analysis.clips import JobCells, JobClips, scored_answers
from jobs.analysis.figures import (
    BELOW,
    bar_figure,
    curve_figure,
    draw_series,
    label,
)
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.formatting import DASH
from jobs.report.theme import legend, new_figure
from jobs.results.answer_columns import metric_of
from jobs.results.cell_summary import BASELINE, SCORE
from jobs.run.build import GENERATED
from pipeline.clips import Clip, questions_of
from tango_core.analysis.coverage import nearest_kept, rank_correlation
from tango_core.analysis.evidence import LEAST_PURITY, surviving
from tango_core.benchmarks.shapes.questions import LEAST_COVER, clip_of, sprites_asked, tokens_of
from tango_core.types import VisualFeatures

# Share of a clip's worst tokens whose mean cosine is reported.
TAIL = 0.05
# Maximum number of bars in the figure of lost answers.
_MOST_BARS = 28
# Minimum number of cells of a correlation within a group, and of questions per point of a curve.
_FEWEST_CELLS, _FEWEST_QUESTIONS = 4, 10
_TAIL = f"worst {100 * TAIL:g} %"
# Column of `by_cell` -> its name on the page.
_MEASURES = {"mean": "mean cosine", "tail": _TAIL, "worst": "worst token", "kept": "tokens kept"}
# Upper ends of the bins of surviving shares in percent; the first bin is a share of exactly 0.
ENDS = (0, 10, 25, 50, 75, 100)
_QUESTION = ["video_id", "question_id"]
# Columns of the evidence table that are shares -> their names on the page: the share of tokens that
# are kept; the share of the object's tokens that survives, also in the best set of equally many
# tokens for all questions about the clip, and for this question; the share of questions whose
# object is gone (`tango_core.analysis.evidence.surviving`).
_SHARES = {
    "kept": "kept %",
    "share": "survives %",
    "best_for_clip": "best %",
    "best": "best known %",
    "gone": "gone %",
}
# The same for columns of `cell_table` that need answers.
_ANSWER_SHARES = {
    "accuracy": "accuracy %",
    "lost": "lost %",
    "lost_gone": "lost: gone %",
    "lost_avoidable": "lost: best keeps %",
    "lost_kept": "lost: still there %",
}
# Reference lines of the figure of survival -> the shares that they show, and their styles.
_BOUNDS = {
    "best set for the clip": ("best_for_clip", "-"),
    "best set for the question": ("best", ":"),
    "random set": ("kept", "--"),
}


def measured(cosines: np.ndarray) -> dict[str, float]:
    """Mean of the (T, L) cosines of a clip, mean over the worst ones, and the worst."""
    tail = np.sort(cosines, axis=None)[: max(1, round(TAIL * cosines.size))].mean()
    return {"mean": cosines.mean(), "tail": tail, "worst": cosines.min()}


def by_cell(cells: pd.DataFrame, clips: pd.DataFrame) -> pd.DataFrame:
    """`JobCells.table` with means over clips and the actual share of kept tokens.

    Args:
        cells: `JobCells.table`.
        clips: One row per clip and `cache`: the columns of `measured`, and the numbers of tokens
            that are `kept` and in `total`.
    """
    groups = clips.groupby("cache")
    sums = groups[["kept", "total"]].sum()
    table = groups[["mean", "tail", "worst"]].mean().assign(kept=sums["kept"] / sums["total"])
    return cells.merge(table, on="cache")


def analyze_coverage(clips: JobClips, *, run: Path | None = None) -> Page:
    """Measure how well the tokens kept by a recipe's methods cover all tokens of its clips.

    Args:
        clips: The clips of a recipe.
        run: A run of this recipe whose scores are correlated with coverage; `None` for none.

    Raises:
        RecipeError: If no clip could be decoded, a method needs a signal that the encoder lacks, or
            the run has no answers about these clips.
    """
    cells, rows = JobCells(clips), []
    analysed: dict[str, set[str]] = {}
    for clip, features, plans in cells.with_plans():
        analysed.setdefault(clip.benchmark, set()).add(clip.video_id)
        for cache, plan in ((cache, plan) for cache, own in plans.items() for plan, _ in own):
            video = plan.apply(features.tokens)
            cosines = nearest_kept(features.tokens, video).double().cpu().numpy()
            counts = {"kept": video.num_kept, "total": cosines.size}
            rows.append({"cache": cache, **measured(cosines), **counts})
    every = by_cell(cells.table, pd.DataFrame(rows)).assign(score=np.nan)
    if run is not None:
        answers = scored_answers(run, analysed)
        if answers.empty:
            raise RecipeError(
                f"{run} has no scored answers about these clips; give a run that asked about them"
            )
        every["score"] = every["cell"].map(answers.groupby("cell")["score"].mean())
    titles = {metric_of(benchmark).title for benchmark in analysed}
    score = titles.pop() if len(titles) == 1 else SCORE
    pruned = every[every["pruned"]]
    findings, figures, tables = [], {}, {}
    if len(pruned):
        y = "cosine to the nearest kept token"
        over = pruned.sort_values("retention", kind="stable").assign(percent=100 * pruned["kept"])
        panels = {"mean": ("mean over all tokens", y), "tail": (f"mean over the {_TAIL}", y)}
        x = ("percent", "tokens kept (%)")
        figures["over_tokens"] = partial(curve_figure, over, x, panels)
    found = correlations(pruned.dropna(subset="score"))
    if len(found):
        title = f"rank correlation with {score}"
        for group, row in found[:3].iterrows():
            rhos = ", ".join(f"{name} {_rho(row[one])}" for one, name in _MEASURES.items())
            findings.append(f"{title}, {group}: {rhos} ({row['cells']:.0f} cells)")
        table = found[[*_MEASURES]].rename(columns=_MEASURES)
        texts = table.map(_rho)
        figures["correlation"] = partial(bar_figure, table, texts, title, width=0.8)
        shown = pd.concat([found["cells"].map("{:.0f}".format), texts], axis=1)
        tables["correlation"] = shown.rename_axis("among").reset_index()
    columns = {"retention": "asked %", "kept": "kept %", "score": f"{score} %"}
    table = every[["cell", "retention", "kept", "mean", "tail", "worst", "score"]]
    table = table.assign(**{name: 100 * table[name] for name in columns})
    table = table.rename(columns={**columns, "tail": _TAIL})
    table = table if run is not None else table.drop(columns=f"{score} %")
    formats = {"asked %": "g", "kept %": ".2f", f"{score} %": ".1f"}
    formats |= dict.fromkeys(("mean", "worst", _TAIL), ".4f")
    tables["coverage"] = as_text(table, formats)
    values = {"fewest": _FEWEST_CELLS, "tail": f"{100 * TAIL:g} %", "score": score}
    return Page("coverage", findings, cells.notes, figures, tables, values)


def correlations(cells: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations of scores with coverage: over all cells, per method and per retention.

    Args:
        cells: Rows of `by_cell` with a `score`.

    Returns:
        One row per group that is large enough: the group's description (index), the number of
        `cells`, and rho of every measure, NaN if all values are equal.
    """
    methods = [own for _, own in cells.groupby("series", sort=False)]
    shares = {f"{share:g}": own for share, own in cells.groupby("retention")}
    groups: dict[str, list[pd.DataFrame]] = {
        "all cells": [cells],
        "retentions of one method (mean over methods)": methods,
        "methods at one retention (mean over retentions)": list(shares.values()),
        **{f"methods at retention {share}": [own] for share, own in shares.items()},
    }
    rows = {}
    for name, parts in groups.items():
        large = [part for part in parts if len(part) >= _FEWEST_CELLS]
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


def analyze_evidence(clips: JobClips, *, run: Path | None = None) -> Page:
    """Measure how many tokens of the objects in questions each method of the recipe keeps.

    Args:
        clips: The clips of a recipe on the benchmark `shapes`, whose tokens are known.
        run: A run of this recipe whose errors are explained; `None` for none.

    Raises:
        RecipeError: If the benchmark is not `shapes`, no clip could be decoded, or a method needs a
            signal that the encoder lacks.
    """
    names = [section.name for section in clips.job.all_benchmarks]
    if names != [GENERATED]:
        raise RecipeError(
            f"benchmark.name {', '.join(names)}: only {GENERATED} knows which tokens show what a "
            "question is about; use a recipe or a run on it, or `tango analyze coverage`"
        )
    cells = JobCells(clips)
    found: list[pd.DataFrame] = []
    kept = dict.fromkeys(cells.table["cache"], 0.0)
    totals = {"tokens": 0, "questions": 0, "with_object": 0}
    for clip, features, plans in cells.with_plans():
        questions = questions_of(clip)
        any_plan, _ = next(iter(plans.values()))[0]
        objects = _objects(clip, features, any_plan.grid[1:])
        totals["tokens"] += any_plan.num_total
        totals["questions"] += len(questions)
        totals["with_object"] += len(objects)
        for name, own in plans.items():
            kept[name] += sum(plan.num_kept for plan, _ in own) / len(own)
            for plan, asked in own:
                about = [index for index in asked if index in objects]
                if about:
                    masks = torch.stack([objects[index] for index in about])
                    measured = {key: value.numpy() for key, value in surviving(plan, masks).items()}
                    ids = [questions[index].id for index in about]
                    keys = {"cache": name, "video_id": clip.video_id, "question_id": ids}
                    found.append(pd.DataFrame({**measured, **keys}))
    if not found:
        raise RecipeError("no question of these clips is about an object; use more clips (--limit)")
    answers = None if run is None else scored_answers(run, {GENERATED: None})
    shares = {name: number / totals["tokens"] for name, number in kept.items()}
    rows = explained(cells.table, shares, pd.concat(found), answers)
    return _page(rows, cells, totals["questions"] - totals["with_object"])


def _objects(
    clip: Clip, features: VisualFeatures, grid: tuple[int, int]
) -> dict[int, torch.Tensor]:
    """Index of a question about an object -> (T * L,) whether a token shows it."""
    described, seconds = clip_of(clip.video_id), features.timestamps.tolist()
    found = {}
    for index, question in enumerate(questions_of(clip)):
        sprites = sprites_asked(described, question)
        shown = tokens_of(described, sprites, seconds, grid)
        if sprites and shown.any():
            found[index] = torch.from_numpy(shown).flatten()
    return found


def explained(
    cells: pd.DataFrame,
    kept: Mapping[str, float],
    evidence: pd.DataFrame,
    answers: pd.DataFrame | None,
) -> pd.DataFrame:
    """Join cells, surviving evidence and answers: one row per cell and question.

    Args:
        cells: `JobCells.table`.
        kept: Actual share of kept tokens by name of the token cache.
        evidence: One row per token cache and question: `cache`, video and question id, and the
            columns of `surviving`.
        answers: Scored answers of the run (`scored_answers`); `None` without a run.

    Returns:
        The columns of `evidence` and of the cells, `right` (`None` without an answer), and bools:
        `known` (answered here, and answered right by the unpruned baseline `full` if the run has
        it), `lost` (known and wrong), `lost_gone` (lost, no evidence left), `lost_avoidable` (of
        those, the best set of equally many tokens keeps evidence), `lost_kept` (lost although
        evidence is left).

    Raises:
        RecipeError: If the run has none of these questions.
    """
    rows = cells.assign(kept=cells["cache"].map(kept)).merge(evidence, on="cache", sort=False)
    rows = rows.assign(right=None, known=False)
    if answers is not None:
        own = answers.rename(columns={"correct": "right"}).set_index(["cell", *_QUESTION])["right"]
        rows = rows.drop(columns="right").join(own, on=["cell", *_QUESTION])
        missing = rows.groupby("cell", sort=False)["right"].count().eq(0)
        missing &= missing.index.isin(answers["cell"])
        if missing.any():
            raise RecipeError(
                f"the run has no answers of {missing.idxmax()} to the questions of these clips; "
                "give the run itself instead of its recipe, or a --limit that it reaches"
            )
        rows["known"] = rows["right"].notna()
        if BASELINE in own.index.get_level_values("cell"):
            in_full = rows[_QUESTION].join(own.xs(BASELINE), on=_QUESTION)["right"]
            rows["known"] &= in_full.eq(True)
    lost = rows["known"] & rows["right"].eq(False)
    return rows.assign(
        lost=lost,
        lost_gone=lost & rows["gone"],
        lost_avoidable=lost & rows["gone"] & (rows["best_for_clip"] > 0),
        lost_kept=lost & ~rows["gone"],
    )


def cell_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: means of the evidence, and what explains its lost answers.

    Args:
        rows: Result of `explained`.

    Returns:
        By cell: means of evidence columns in [0, 1], numbers of `known` and `lost` questions, and
        the shares `accuracy`, and of the lost ones `lost_gone`, `lost_avoidable` (gone, and kept by
        the best set of equally many tokens) and `lost_kept`; NaN where nothing is counted.
    """
    groups = rows.assign(accuracy=rows["right"].astype(float)).groupby("cell", sort=False)
    table = groups[["kept", "share", "best_for_clip", "best", "gone", "accuracy"]].mean()
    counts = groups[["known", "lost", "lost_gone", "lost_avoidable", "lost_kept"]].sum()
    return table.join(counts)


def bins_of(known: pd.DataFrame) -> pd.DataFrame:
    """`number` of answers and `accuracy` in percent per bin of surviving shares."""
    names = ["0", *(f"{low} to {high} %" for low, high in pairwise(ENDS))]
    ends = [-np.inf, *(end / 100 + 1e-9 * bool(end) for end in ENDS)]
    bins = pd.cut(known["share"], ends, labels=names)
    groups = known["right"].astype(float).groupby(bins, observed=False)
    return pd.DataFrame({"number": groups.size(), "accuracy": 100 * groups.mean()})


def _page(rows: pd.DataFrame, cells: JobCells, num_without: int) -> Page:
    """Page of `analyze_evidence`.

    Args:
        rows: Result of `explained`.
        cells: The cells of the recipe.
        num_without: Number of questions that are not about an object.
    """
    table, pruned = cell_table(rows), rows[rows["pruned"]]
    curves = {
        "share": ("", "tokens of the object that survive (%)"),
        "gone": ("", "questions whose evidence is gone (%)"),
    }
    styles = {name: style for name, (_, style) in _BOUNDS.items()}
    x = ("kept", "tokens kept (%)")
    figures = {"survival": partial(curve_figure, _survival(pruned), x, curves, styles)}
    findings: list[str] = []
    known = pruned[pruned["known"]]
    if len(known):
        lost = known[known["lost"]]
        findings = ["no answer is lost to any method"]
        if len(lost):
            findings = [
                f"of {len(lost)} answers that are right with all tokens and wrong with a method, "
                f"{100 * lost['lost_gone'].mean():.0f} % have their evidence gone (no kept token "
                f"is at least {100 * LEAST_PURITY:g} % the object); the best set of as many tokens "
                f"would have kept it in {100 * lost['lost_avoidable'].mean():.0f} %"
            ]
        at_share = pruned.loc[pruned["retention"] == cells.share, "cell"].unique()
        bars = _lost(table.loc[at_share][:_MOST_BARS])
        texts = pd.DataFrame({bars.columns[-1]: bars.sum(axis=1).map("{:.1f}".format)})
        x_label = "answers lost, in % of those right with all tokens"
        figures |= {
            "accuracy_by_evidence": partial(_by_bin, known),
            "lost": partial(bar_figure, bars, texts, x_label, stacked=True, width=0.7),
        }
    notes = [
        f"a token shows an object that covers at least {100 * LEAST_COVER:g} % of it; "
        f"{num_without} question(s) about no object (which scene comes first or last) are left out",
        *cells.notes,
    ]
    percent = 100 * table.assign(lost=table["lost"] / table["known"])
    parts = ["lost_gone", "lost_avoidable", "lost_kept"]
    percent[parts] = percent[parts].div(table["lost"], axis=0)
    names = _SHARES | (_ANSWER_SHARES if rows["right"].notna().any() else {})
    formats = dict.fromkeys(names.values(), ".1f") | {"kept %": ".2f"}
    shown = as_text(percent[[*names]].rename(columns=names).reset_index(), formats)
    return Page("evidence", findings, notes, figures, {"evidence": shown}, {"share": cells.share})


def _survival(rows: pd.DataFrame) -> pd.DataFrame:
    """Means per cell in percent, with those of the best and of a random set as further series."""
    columns = ["kept", "share", "gone", "best", "best_for_clip"]
    means = 100 * rows.groupby(["series", "cell"], sort=False)[columns].mean().sort_values("kept")
    means = means.reset_index()
    bounds = [
        means.assign(series=name, share=means[column], gone=np.nan)
        for name, (column, _) in _BOUNDS.items()
    ]
    return pd.concat([means, *bounds])


def _by_bin(known: pd.DataFrame) -> Figure:
    """Accuracy per bin of surviving shares."""
    figure, (panel,) = new_figure((7.6, 5.4))
    total = bins_of(known)
    every = {"all cells": total, **{str(one): bins_of(own) for one, own in known.groupby("series")}}
    rows = pd.concat({name: own.reset_index(drop=True) for name, own in every.items()})
    rows = rows[rows["number"] >= _FEWEST_QUESTIONS].rename_axis(["series", "bin"]).reset_index()
    draw_series(panel, rows, "bin", "accuracy", {"all cells": "-"})
    panel.set_ylim(0, 103)
    numbers = [f"{name}\n{number:,}" for name, number in total["number"].items()]
    panel.set_xticks(np.arange(len(ENDS)), numbers, fontsize=8.5)
    x = "object's tokens that survive, and number of questions"
    label(panel, x=x, y="accuracy (%) on what all tokens answer", grid="y")
    legend(figure, [panel], **BELOW)
    return figure


def _lost(table: pd.DataFrame) -> pd.DataFrame:
    """Lost answers of every cell in percent, by the state of their evidence."""
    percent = 100 * table.div(table["known"].clip(lower=1), axis=0)
    return pd.DataFrame(
        {
            "still there": percent["lost_kept"],
            "gone, the best set keeps it": percent["lost_avoidable"],
            "gone, the best set loses it too": percent["lost_gone"] - percent["lost_avoidable"],
        }
    )
