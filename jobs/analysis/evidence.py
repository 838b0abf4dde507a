"""`tango analyze evidence`: surviving tokens of the objects that questions ask about."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from jobs.analysis.clips import JobCells, JobClips, Plans, common_retention, scored_answers
from jobs.analysis.figures import bar_figure, curve_figure, draw_series, label, legend_below
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.theme import Theme, new_figure
from jobs.results.cell_summary import BASELINE
from jobs.run.build import GENERATED
from pipeline.clips import Clip, questions_of
from tango_core.analysis.evidence import LEAST_PURITY, surviving
from tango_core.benchmarks.shapes.questions import LEAST_COVER, clip_of, sprites_asked, tokens_of
from tango_core.types import VisualFeatures

# Maximum number of bars in the figure of lost answers; minimum questions per point of a curve.
_MOST_BARS, _FEWEST = 28, 10
# Upper ends of the bins of surviving shares in percent; the first bin is a share of exactly 0.
ENDS = (0, 10, 25, 50, 75, 100)
_QUESTION = ["video_id", "question_id"]
# Columns of the table of cells that are shares -> their names on the page.
_SHARES = {
    "kept": "kept %",
    "share": "survives %",
    "best_for_clip": "best %",
    "best": "best known %",
    "gone": "gone %",
}
# Reference lines of the figure of survival -> their styles.
_BOUNDS = {"best set for the clip": "-", "best set for the question": ":", "random set": "--"}
_ANSWER_SHARES = {
    "accuracy": "accuracy %",
    "lost": "lost %",
    "lost_gone": "lost: gone %",
    "lost_avoidable": "lost: best keeps %",
    "lost_kept": "lost: still there %",
}


def analyze_evidence(clips: JobClips, *, run: Path | None = None) -> Page:
    """Measure how many tokens of the questioned objects each method of the recipe keeps.

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
    totals = {"tokens": 0, "asked": 0, "about": 0}

    def add(clip: Clip, features: VisualFeatures, plans: dict[str, Plans]) -> None:
        questions = questions_of(clip)
        any_plan, _ = next(iter(plans.values()))[0]
        objects = _objects(clip, features, any_plan.grid[1:])
        totals["tokens"] += any_plan.num_total
        totals["asked"] += len(questions)
        totals["about"] += len(objects)
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

    cells.with_plans(add)
    if not found:
        raise RecipeError("no question of these clips is about an object; use more clips (--limit)")
    answers = None if run is None else scored_answers(run, {GENERATED: None})
    shares = {name: number / totals["tokens"] for name, number in kept.items()}
    rows = explained(cells.table, shares, pd.concat(found), answers)
    return _page(rows, cells, totals["asked"] - totals["about"])


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
        The columns of `evidence` and of the cells, `right` (`None` without an answer), `known`
        (answered, and the unpruned baseline `full` is right, if the run has it), and `lost` (known
        and wrong), `lost_gone` (lost without evidence), `lost_avoidable` (the best set of equally
        many tokens keeps it) and `lost_kept` (lost with evidence).

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


def _page(rows: pd.DataFrame, cells: JobCells, without: int) -> Page:
    share = common_retention(cells.table)
    table = cell_table(rows)
    pruned = rows[rows["pruned"]]
    at_share = pruned[pruned["retention"] == share]
    curves = {
        "share": ("", "tokens of the object that survive (%)"),
        "gone": ("", "questions whose evidence is gone (%)"),
    }
    x = ("kept", "tokens kept (%)")
    figures = {"survival": partial(curve_figure, _survival(pruned), x, curves, _BOUNDS)}
    findings: list[str] = []
    known = pruned[pruned["known"]]
    if len(known):
        findings = _errors_in_words(known)
        bars = _lost(table.loc[at_share["cell"].unique()][:_MOST_BARS])
        texts = pd.DataFrame({bars.columns[-1]: bars.sum(axis=1).map("{:.1f}".format)})
        x_label = "answers lost, in % of those right with all tokens"
        figures |= {
            "accuracy_by_evidence": partial(_by_bin, known),
            "lost": partial(bar_figure, bars, texts, x_label, stacked=True, width=0.7),
        }
    notes = [
        f"a token shows an object that covers at least {100 * LEAST_COVER:g} % of it; "
        f"{without} question(s) about no object (which scene comes first or last) are left out",
        *cells.notes,
    ]
    percent = 100 * table.assign(lost=table["lost"] / table["known"])
    for name in ("lost_gone", "lost_avoidable", "lost_kept"):
        percent[name] /= table["lost"]
    names = _SHARES | (_ANSWER_SHARES if rows["right"].notna().any() else {})
    formats = dict.fromkeys(names.values(), ".1f") | {"kept %": ".2f"}
    shown = as_text(percent[[*names]].rename(columns=names).reset_index(), formats)
    return Page("evidence", findings, notes, figures, {"evidence": shown}, {"share": share})


def _errors_in_words(known: pd.DataFrame) -> list[str]:
    """Sentences about lost answers and their evidence over all pruned cells."""
    lost = known[known["lost"]]
    if lost.empty:
        return ["no answer is lost to any method"]
    return [
        f"of {len(lost)} answers that are right with all tokens and wrong with a method, "
        f"{100 * lost['lost_gone'].mean():.0f} % have their evidence gone (no kept token is at "
        f"least {100 * LEAST_PURITY:g} % the object); the best set of as many tokens would have "
        f"kept it in {100 * lost['lost_avoidable'].mean():.0f} %"
    ]


def _survival(rows: pd.DataFrame) -> pd.DataFrame:
    """Means per cell in percent, with those of the best and of a random set as further series."""
    columns = ["kept", "share", "gone", "best", "best_for_clip"]
    means = 100 * rows.groupby(["series", "cell"], sort=False)[columns].mean().sort_values("kept")
    means = means.reset_index()
    bounds = dict(zip(_BOUNDS, ("best_for_clip", "best", "kept"), strict=True))
    further = [
        means.assign(series=name, share=means[column], gone=np.nan)
        for name, column in bounds.items()
    ]
    return pd.concat([means, *further])


def _by_bin(known: pd.DataFrame, theme: Theme) -> Figure:
    """Accuracy per bin of surviving shares."""
    figure, (panel,) = new_figure((7.6, 5.4), theme)
    total = bins_of(known)
    every = {"all cells": total, **{str(one): bins_of(own) for one, own in known.groupby("series")}}
    rows = pd.concat({name: own.reset_index(drop=True) for name, own in every.items()})
    rows = rows[rows["number"] >= _FEWEST].rename_axis(["series", "bin"]).reset_index()
    draw_series(panel, rows, "bin", "accuracy", theme, {"all cells": "-"})
    panel.set_ylim(0, 103)
    numbers = [f"{name}\n{number:,}" for name, number in total["number"].items()]
    panel.set_xticks(np.arange(len(ENDS)), numbers, fontsize=8.5)
    x = "object's tokens that survive, and number of questions"
    label(panel, theme, x=x, y="accuracy (%) on what all tokens answer", grid="y")
    legend_below(figure, panel, theme)
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
