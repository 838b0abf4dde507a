"""`tango analyze evidence`: surviving tokens of the objects that questions ask about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from jobs.analysis.clips import Cell, JobCells, JobClips, common_retention, scored_answers
from jobs.analysis.figures import LONGEST_NAME, Points, draw_series, label, legend_below
from jobs.analysis.page import Page, as_text
from jobs.config.recipe import RecipeError
from jobs.report.formatting import shortened
from jobs.report.theme import Theme, handles_of, legend, new_figure
from jobs.results.cell_summary import BASELINE
from jobs.run.build import GENERATED
from pipeline.clips import Clip, questions_of
from tango_core.analysis.evidence import LEAST_PURITY, surviving
from tango_core.benchmarks.shapes.evidence import LEAST_COVER, clip_of, sprites_asked, tokens_of
from tango_core.types import VisualFeatures

# Maximum number of bars in the figure of lost answers; minimum questions per point of a curve.
_MOST_BARS, _FEWEST = 28, 10
# Bins of surviving shares with their upper ends; the first bin is a share of exactly 0.
BINS = {
    "0": 0.0,
    "0 to 10 %": 0.1,
    "10 to 25 %": 0.25,
    "25 to 50 %": 0.5,
    "50 to 75 %": 0.75,
    "75 to 100 %": 1.0,
}
_QUESTION = ["video_id", "question_id"]
# Columns of the table of cells that are shares -> their names on the page.
_SHARES = {
    "kept": "kept %",
    "share": "survives %",
    "best_for_clip": "best %",
    "best": "best known %",
    "gone": "gone %",
}
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
    kept = {cell.cache: 0.0 for cell in cells.cells}
    total = without = 0
    for row, features, plans in cells.planned():
        questions = questions_of(row)
        any_plan, _ = next(iter(plans.values()))[0]
        objects = _objects(row, features, any_plan.grid[1:])
        without += len(questions) - len(objects)
        total += any_plan.num_total
        for name, own in plans.items():
            kept[name] += sum(plan.num_kept for plan, _ in own) / len(own)
            for plan, asked in own:
                about = [index for index in asked if index in objects]
                if about:
                    masks = torch.stack([objects[index] for index in about])
                    measured = {key: value.numpy() for key, value in surviving(plan, masks).items()}
                    ids = [questions[index].id for index in about]
                    keys = {"cache": name, "video_id": row.video_id, "question_id": ids}
                    found.append(pd.DataFrame({**measured, **keys}))
    if not found:
        raise RecipeError("no question of these clips is about an object; use more clips (--limit)")
    shares = {name: number / total for name, number in kept.items()}
    answers = None if run is None else scored_answers(run, {GENERATED: None}).dropna(subset="score")
    rows = explained(cells.cells, shares, pd.concat(found, ignore_index=True), answers)
    return _page(rows, cells, without)


def _objects(row: Clip, features: VisualFeatures, grid: tuple[int, int]) -> dict[int, torch.Tensor]:
    """Index of a question about an object -> (T * L,) share of every token that shows it."""
    clip, seconds = clip_of(row.video_id), features.timestamps.tolist()
    found = {}
    for index, question in enumerate(questions_of(row)):
        sprites = sprites_asked(clip, question)
        shown = tokens_of(clip, sprites, seconds, grid)
        if sprites and shown.any():
            found[index] = torch.from_numpy(shown).flatten()
    return found


def explained(
    cells: Sequence[Cell],
    kept: Mapping[str, float],
    evidence: pd.DataFrame,
    answers: pd.DataFrame | None,
) -> pd.DataFrame:
    """Join cells, surviving evidence and answers: one row per cell and question.

    Args:
        cells: The cells.
        kept: Actual share of kept tokens by name of the token cache.
        evidence: One row per token cache and question: `cache`, video and question id, and the
            columns of `surviving`.
        answers: Scored answers of the run (`scored_answers`); `None` without a run.

    Returns:
        The columns of `evidence` and of the cells, `right` (`None` without an answer), `known`
        (answered, and the unpruned baseline `full` is right, if the run has it), and `lost` (known
        and wrong).

    Raises:
        RecipeError: If the run has none of these questions.
    """
    names = pd.DataFrame(
        [
            (one.name, one.series, one.retention, one.compressor.outer_retention < 1, one.cache)
            for one in cells
        ],
        columns=["cell", "series", "retention", "pruned", "cache"],
    )
    rows = names.assign(kept=names["cache"].map(kept)).merge(evidence, on="cache", sort=False)
    if answers is None:
        return rows.assign(right=None, known=False, lost=False)
    answers = answers[["cell", *_QUESTION, "correct"]].rename(columns={"correct": "right"})
    rows = rows.merge(answers, on=["cell", *_QUESTION], how="left")
    answered = set(rows.loc[rows["right"].notna(), "cell"])
    unanswered = [name for name in names["cell"] if name not in answered]
    missing = [name for name in unanswered if name in set(answers["cell"])]
    if missing:
        raise RecipeError(
            f"the run has no answers of {missing[0]} to the questions of these clips; give the run "
            "itself instead of its recipe, or a --limit that it reaches"
        )
    full = answers[answers["cell"] == BASELINE].rename(columns={"right": "right_in_full"})
    rows = rows.merge(full.drop(columns="cell"), on=_QUESTION, how="left")
    known = rows["right"].notna() & (full.empty | rows["right_in_full"].eq(True))
    return rows.assign(known=known, lost=known & rows["right"].eq(False))


def cell_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: means of the evidence, and what explains its lost answers.

    Args:
        rows: Result of `explained`.

    Returns:
        By cell: means of evidence columns in [0, 1], numbers of `known` and `lost` questions, and
        the shares `accuracy`, and of the lost ones `lost_gone`, `lost_avoidable` (gone, and kept by
        the best set of equally many tokens) and `lost_kept`; NaN where nothing is counted.
    """
    rows = rows.assign(
        lost_gone=rows["lost"] & rows["gone"],
        lost_avoidable=rows["lost"] & rows["gone"] & (rows["best_for_clip"] > 0),
        lost_kept=rows["lost"] & ~rows["gone"],
        accuracy=rows["right"].astype(float),
    )
    groups = rows.groupby("cell", sort=False)
    table = groups[["kept", "share", "best_for_clip", "best", "gone", "accuracy"]].mean()
    counts = groups[["known", "lost", "lost_gone", "lost_avoidable", "lost_kept"]].sum()
    return table.join(counts)


def bins_of(known: pd.DataFrame) -> pd.DataFrame:
    """`number` of answers and number of `right` answers per bin of surviving shares."""
    ends = [-np.inf, *(end + 1e-9 * bool(end) for end in BINS.values())]
    bins = pd.cut(known["share"], ends, labels=list(BINS))
    groups = known["right"].astype(bool).groupby(bins, observed=False)
    return pd.DataFrame({"number": groups.size(), "right": groups.sum()})


def _page(rows: pd.DataFrame, cells: JobCells, without: int) -> Page:
    share = common_retention(cells.cells)
    table = cell_table(rows)
    pruned = rows[rows["pruned"]]
    at_share = pruned[pruned["retention"] == share]
    findings = []
    if len(at_share):
        means = at_share.groupby("series")["share"].mean().to_dict()
        best, least = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        ideal = at_share.loc[at_share["series"] == best, "best_for_clip"].mean()
        findings.append(
            f"at retention {share:g}: most of the object's tokens survive with {best} "
            f"({100 * means[best]:.0f} %), fewest with {least} ({100 * means[least]:.0f} %); the "
            f"best set for all questions of a clip would keep {100 * ideal:.0f} %"
        )
    figures = {"survival": partial(_survival_curves, pruned)}
    tables = {"evidence": _cells_as_text(rows, table)}
    known = pruned[pruned["known"]]
    if len(known):
        findings += _errors_in_words(known)
        figures |= {
            "accuracy_by_evidence": partial(_by_bin, known),
            "lost": partial(_lost_bars, table.loc[at_share["cell"].unique()][:_MOST_BARS]),
        }
    notes = [
        f"a token shows an object that covers at least {100 * LEAST_COVER:g} % of it; "
        f"{without} question(s) about no object (which scene comes first or last) are left out",
        *cells.notes,
    ]
    return Page("evidence", findings, notes, figures, tables, {"share": share})


def _errors_in_words(known: pd.DataFrame) -> list[str]:
    """Sentences about lost answers and their evidence over all pruned cells."""
    lost = known[known["lost"]]
    if lost.empty:
        return ["no answer is lost to any method"]
    avoidable = lost["gone"] & (lost["best_for_clip"] > 0)
    sentences = [
        f"of {len(lost)} answers that are right with all tokens and wrong with a method, "
        f"{100 * lost['gone'].mean():.0f} % have their evidence gone (no kept token is at "
        f"least {100 * LEAST_PURITY:g} % the object); the best set of as many tokens would have "
        f"kept it in {100 * avoidable.mean():.0f} %"
    ]
    if known["gone"].nunique() == 2:
        accuracy = known["right"].astype(float).groupby(known["gone"]).mean()
        sentences.append(
            f"accuracy on what all tokens answer: {100 * accuracy[False]:.1f} % where "
            f"evidence is left, {100 * accuracy[True]:.1f} % where it is gone"
        )
    return sentences


def _cells_as_text(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The table of cells with percentages; answers only if the run has some."""
    percent = 100 * table.assign(lost=table["lost"] / table["known"])
    for name in ("lost_gone", "lost_avoidable", "lost_kept"):
        percent[name] = 100 * table[name] / table["lost"]
    names = _SHARES | (_ANSWER_SHARES if rows["right"].notna().any() else {})
    found = percent[[*names]].rename(columns=names)
    formats = dict.fromkeys(names.values(), ".1f") | {"kept %": ".2f"}
    return as_text(found.reset_index(), **formats)


def _survival_curves(rows: pd.DataFrame, theme: Theme) -> Figure:
    """Surviving share, and share of questions without evidence, over the share of kept tokens."""
    figure, (left, right) = new_figure((11.6, 5.6), theme, columns=2)
    columns = ["kept", "share", "gone", "best", "best_for_clip"]
    means = 100 * rows.groupby(["series", "cell"], sort=False)[columns].mean().sort_values("kept")
    for panel, measure, y in (
        (left, "share", "tokens of the object that survive (%)"),
        (right, "gone", "questions whose evidence is gone (%)"),
    ):
        series: dict[str, Points] = {
            str(name): own[["kept", measure]].to_numpy().tolist()
            for name, own in means.groupby("series", sort=False)
        }
        draw_series(panel, series, theme)
        panel.set_ylim(bottom=0)
        label(panel, theme, x="tokens kept (%)", y=y)
    for values, style in (
        (means["best_for_clip"], {"linestyle": "-", "label": "best set for the clip"}),
        (means["best"], {"linestyle": ":", "label": "best set for the question"}),
        (means["kept"], {"linestyle": "--", "label": "random set", "alpha": 0.5}),
    ):
        left.plot(means["kept"], values, color=theme.foreground, **style)
    left.set_ylim(0, 103)
    legend_below(figure, left, theme)
    return figure


def _by_bin(known: pd.DataFrame, theme: Theme) -> Figure:
    """Accuracy per bin of surviving shares."""
    figure, (panel,) = new_figure((7.6, 5.4), theme)
    series = {str(name): _accuracies(bins_of(own)) for name, own in known.groupby("series")}
    draw_series(panel, series, theme)
    total = bins_of(known)
    pooled = np.array(_accuracies(total)).reshape(-1, 2).T
    panel.plot(*pooled, "o-", color=theme.foreground, linewidth=2.6, zorder=5, label="all cells")
    panel.set_ylim(0, 103)
    numbers = [f"{name}\n{number:,}" for name, number in total["number"].items()]
    panel.set_xticks(np.arange(len(BINS)), numbers, fontsize=8.5)
    x = "object's tokens that survive, and number of questions"
    label(panel, theme, x=x, y="accuracy (%) on what all tokens answer", grid="y")
    legend_below(figure, panel, theme)
    return figure


def _accuracies(bins: pd.DataFrame) -> Points:
    """(index of the bin, accuracy in percent) of bins with enough questions."""
    bins = bins.assign(place=np.arange(len(bins)), accuracy=100 * bins["right"] / bins["number"])
    points: Points = bins.loc[bins["number"] >= _FEWEST, ["place", "accuracy"]].to_numpy().tolist()
    return points


def _lost_bars(table: pd.DataFrame, theme: Theme) -> Figure:
    """Bars of every cell's lost answers by the state of their evidence."""
    figure, (panel,) = new_figure((10.4, 1.5 + 0.31 * len(table)), theme)
    places = np.arange(len(table))
    percent = 100 * table.div(table["known"].clip(lower=1), axis=0)
    start = np.zeros(len(table))
    for name, values, colour in (
        ("gone, the best set keeps it", percent["lost_avoidable"], theme.series[1]),
        (
            "gone, the best set loses it too",
            percent["lost_gone"] - percent["lost_avoidable"],
            theme.series[4],
        ),
        ("still there", percent["lost_kept"], theme.series[0]),
    ):
        bars = panel.barh(places, values, left=start, height=0.7, color=colour, label=name)
        start = start + values.to_numpy()
    texts = [f"{end:.1f}" for end in start]
    panel.bar_label(bars, texts, padding=3, fontsize=8.5, color=theme.foreground)
    panel.set_yticks(places, [shortened(str(cell), LONGEST_NAME) for cell in table.index])
    panel.set_ylim(len(table) - 0.4, -0.6)
    panel.set_xlim(0, max(1.0, 1.08 * float(start.max(initial=1.0))))
    label(panel, theme, x="answers lost, in % of those right with all tokens", grid="x")
    legend(figure, handles_of([panel]), theme)
    return figure
