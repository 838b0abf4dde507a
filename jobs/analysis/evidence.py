"""`tango analyze evidence`: remaining tokens of the objects that questions ask about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from matplotlib.figure import Figure
from rich.console import Console

from jobs.analysis.clips import Cell, JobCells, JobClips, common_retention
from jobs.analysis.figures import Points, draw_series, label, legend_below, shortened
from jobs.analysis.page import Drawing, Page, Table, finish
from jobs.config.recipe import Job, RecipeError
from jobs.report.theme import Theme, legend_above, new_figure
from jobs.results.cell_summary import BASELINE
from jobs.results.reduction import parts_of
from jobs.run.build import GENERATED
from pipeline.clips import Clip, questions_of
from tango_core.analysis.correlation import separation
from tango_core.analysis.evidence import LEAST_PURITY, left_of
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
_EVIDENCE = ["share", "best", "best_for_clip", "gone"]


@dataclass(frozen=True, eq=False)
class Explained:
    """A cell with the surviving evidence per question, and its answers if there are any.

    Attributes:
        cell: The cell.
        retention: Actual share of kept tokens.
        evidence: One row per question: video and question id, surviving `share` of the object's
            tokens, `best` and `best_for_clip` (the share in the best set of equally many tokens,
            chosen for this question or for all questions of the clip), and whether it is `gone`.
        answers: The rows that the run answered, with `right` and `right_in_full`, whether the
            unpruned baseline `full` is right (always true if the run has no `full`); `None` without
            a run, or if the run lacks the cell.
    """

    cell: Cell
    retention: float
    evidence: pd.DataFrame
    answers: pd.DataFrame | None

    def mean(self, column: str) -> float:
        """Mean of a column of the evidence over all questions."""
        return float(self.evidence[column].mean())

    @property
    def known(self) -> pd.DataFrame:
        """The answers to questions that the unpruned baseline `full` answers correctly."""
        assert self.answers is not None
        return self.answers[self.answers["right_in_full"]]

    def lost(self) -> dict[str, int]:
        """Count wrong answers to questions that the unpruned baseline `full` answers correctly.

        `all` counts all of them, `gone` those without evidence, and `avoidable` those of `gone`
        whose evidence the best set of equally many tokens keeps.
        """
        lost = self.known[~self.known["right"]]
        gone = lost[lost["gone"]]
        return {
            "all": len(lost),
            "gone": len(gone),
            "avoidable": int((gone["best_for_clip"] > 0).sum()),
        }


def analyze_evidence(
    job: Job, folder: Path, cache_root: str, console: Console, *, run: Path | None = None
) -> int:
    """Measure how many tokens of the questioned objects each method of the recipe keeps.

    Args:
        job: A recipe on the benchmark `shapes`, for which the content of every token is known.
        folder: Receives the page.
        cache_root: Directory or URL of the caches.
        console: Where to print.
        run: A run of this recipe whose errors are explained; `None` for none.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If the benchmark is not `shapes`, no clip could be decoded, or a method needs a
            signal that the encoder lacks.
    """
    names = [section.name for section in job.all_benchmarks]
    if names != [GENERATED]:
        raise RecipeError(
            f"benchmark.name {', '.join(names)}: only {GENERATED} knows which tokens show what a "
            "question is about; use a recipe or a run on it, or `tango analyze coverage`"
        )
    clips = JobClips(job, cache_root)
    cells = JobCells(clips)
    found: list[tuple[str, str, str, float, float, float, bool]] = []
    kept = dict.fromkeys((cell.cache for cell in cells.cells), 0)
    total = analysed = without = 0
    for row, features, plans in cells.planned():
        any_plan = next(iter(plans.values()))
        asked, objects = _objects(row, features, any_plan.grid[1:])
        analysed, without = analysed + 1, without + len(questions_of(row)) - len(asked)
        total += any_plan.num_total
        for name, plan in plans.items():
            kept[name] += plan.num_kept
            for question, one in zip(asked, left_of(plan, objects), strict=True):
                numbers = one.share, one.best, one.best_for_clip, one.gone
                found.append((name, row.video_id, question, *numbers))
    subtitle = clips.subtitle(analysed)
    if not found:
        raise RecipeError("no question of these clips is about an object; use more clips (--limit)")
    evidence = pd.DataFrame(found, columns=["cache", *_QUESTION, *_EVIDENCE])
    answers = None if run is None else outcomes(run, GENERATED)
    explained = [
        explain(cell, kept[cell.cache] / total, evidence[evidence["cache"] == cell.cache], answers)
        for cell in cells.cells
    ]
    page = _page(explained, cells, without, answers is not None, subtitle)
    return finish(page, clips, folder, console)


def _objects(
    row: Clip, features: VisualFeatures, grid: tuple[int, int]
) -> tuple[list[str], torch.Tensor]:
    """Ids of the questions about objects, and the (Q, T * L) object share of every token."""
    clip = clip_of(row.video_id)
    ids, masks = [], []
    seconds = features.timestamps.tolist()
    for question in questions_of(row):
        sprites = sprites_asked(clip, question)
        shown = tokens_of(clip, sprites, seconds, grid)
        if sprites and shown.any():
            ids.append(question.id)
            masks.append(torch.from_numpy(shown).flatten())
    total = len(seconds) * grid[0] * grid[1]
    return ids, torch.stack(masks) if masks else torch.zeros(0, total, dtype=torch.bool)


def outcomes(run: Path, benchmark: str) -> pd.DataFrame:
    """Cell, question id and `correct` of every scored question of a benchmark.

    Failed and unparsed answers are wrong.

    Raises:
        FileNotFoundError: If the run has no answers.
        DamagedFileError: If a file of the run is damaged.
    """
    parts = []
    for table in parts_of(run).whole_clips():
        scored = pc.and_(pc.equal(table["benchmark"], benchmark), pc.is_valid(table["answer"]))
        own = table.filter(scored).select(["cell", *_QUESTION, "correct"])
        parts.append(own.set_column(3, "correct", pc.fill_null(own["correct"], False)))
    answers: pd.DataFrame = pa.concat_tables(parts, promote_options="default").to_pandas()
    return answers


def explain(
    cell: Cell, retention: float, evidence: pd.DataFrame, answers: pd.DataFrame | None
) -> Explained:
    """Join evidence and answers of a cell.

    Args:
        cell: The cell.
        retention: Actual share of kept tokens.
        evidence: As in `Explained`.
        answers: Result of `outcomes`; `None` without a run.

    Raises:
        RecipeError: If the run has none of these questions.
    """
    own = None if answers is None else answers[answers["cell"] == cell.name]
    if answers is None or own is None or own.empty:
        return Explained(cell, retention, evidence, None)
    joined = evidence.merge(own.rename(columns={"correct": "right"}), on=_QUESTION)
    if joined.empty:
        raise RecipeError(
            f"the run has no answers of {cell.name} to the questions of these clips; give the run "
            "itself instead of its recipe, or a --limit that it reaches"
        )
    full = answers[answers["cell"] == BASELINE].rename(columns={"correct": "right_in_full"})
    joined = joined.merge(full.drop(columns="cell"), on=_QUESTION, how="left")
    joined["right"] = joined["right"].astype(bool)
    joined["right_in_full"] = full.empty or joined["right_in_full"].eq(True)
    return Explained(cell, retention, evidence, joined)


def bins_of(known: pd.DataFrame) -> pd.DataFrame:
    """`number` of answers and number of `right` answers per bin of surviving shares."""
    ends = [-np.inf, *(end + 1e-9 * bool(end) for end in BINS.values())]
    bins = pd.cut(known["share"], ends, labels=list(BINS))
    groups = known.groupby(bins, observed=False)["right"]
    return pd.DataFrame({"number": groups.size(), "right": groups.sum()})


def _page(
    explained: list[Explained], cells: JobCells, without: int, with_answers: bool, subtitle: str
) -> Page:
    pruned = [one for one in explained if one.cell.compressor.outer_retention < 1]
    answered = [one for one in pruned if one.answers is not None]
    share = common_retention(cells.cells)
    at_share = [one for one in pruned if one.cell.retention == share]
    best = max(at_share, key=lambda one: one.mean("share"))
    least = min(at_share, key=lambda one: one.mean("share"))
    findings = [
        f"at retention {share:g}: most of the object's tokens survive with {best.cell.series} "
        f"({100 * best.mean('share'):.0f} %), fewest with {least.cell.series} "
        f"({100 * least.mean('share'):.0f} %); the best set for all questions of a clip would keep "
        f"{100 * best.mean('best_for_clip'):.0f} %"
    ]
    drawings = [
        Drawing(
            "survival",
            "Share of the questioned object's tokens that survive",
            "A kept token counts with the share of its weight that comes from the object. Black: "
            "the best set of as many tokens, solid if it must serve all questions about the clip, "
            "dotted if it knows the question; dashed grey: a random selection.",
            partial(_survival_curves, pruned),
        )
    ]
    tables = [_cells_table(explained, with_answers)]
    if answered:
        findings += _errors_in_words(answered)
        drawings += [
            Drawing(
                "accuracy_by_evidence",
                "Accuracy by the evidence that is left",
                "Questions that the model answers with all tokens, by the share of the object's "
                "tokens that survives; all pruned cells together in black. Right: how the "
                "questions are spread over these bins.",
                partial(_by_bin, answered),
            ),
            Drawing(
                "lost",
                f"Why answers are lost, at retention {share:g}",
                "Questions that are right with all tokens and wrong with the method, in % of those "
                "right with all tokens. Gone: no kept token shows at least half of the object.",
                partial(_lost_bars, [one for one in at_share[:_MOST_BARS] if one in answered]),
            ),
        ]
        rows = [
            {
                "cell": one.cell.name,
                "survives": str(name),
                "questions": str(row["number"]),
                "accuracy %": _percent(row["right"], row["number"]),
            }
            for one in answered
            for name, row in bins_of(one.known).iterrows()
        ]
        title = "Accuracy by the evidence that is left"
        caption = "Of the questions that are right with all tokens."
        tables.append(Table("accuracy_by_evidence", title, caption, rows, shown=2 * len(BINS)))
    return Page(
        title="Evidence: what is left of what questions are about",
        subtitle=subtitle,
        findings=findings,
        notes=[
            f"a token shows an object that covers at least {100 * LEAST_COVER:g} % of it; "
            f"{without} question(s) about no object (which scene comes first or last) are left out",
            *cells.notes,
        ],
        drawings=drawings,
        tables=tables,
    )


def _errors_in_words(answered: Sequence[Explained]) -> list[str]:
    """Sentences about lost answers and their evidence over all pruned cells."""
    lost = pd.DataFrame([one.lost() for one in answered]).sum()
    known = pd.concat([one.known for one in answered])
    gone, kept = known[known["gone"]], known[~known["gone"]]
    if not lost["all"]:
        return ["no answer is lost to any method"]
    sentences = [
        f"of {lost['all']} answers that are right with all tokens and wrong with a method, "
        f"{100 * lost['gone'] / lost['all']:.0f} % have their evidence gone (no kept token is at "
        f"least {100 * LEAST_PURITY:g} % the object); the best set of as many tokens would have "
        f"kept it in {100 * lost['avoidable'] / lost['all']:.0f} %"
    ]
    if len(kept) and len(gone):
        sentences.append(
            f"accuracy on what all tokens answer: {100 * kept['right'].mean():.1f} % where "
            f"evidence is left, {100 * gone['right'].mean():.1f} % where it is gone"
        )
    return sentences


def _cells_table(explained: Sequence[Explained], with_answers: bool) -> Table:
    rows = []
    for one in explained:
        row = {
            "cell": one.cell.name,
            "kept %": f"{100 * one.retention:.2f}",
            "survives %": f"{100 * one.mean('share'):.1f}",
            "best %": f"{100 * one.mean('best_for_clip'):.1f}",
            "best known %": f"{100 * one.mean('best'):.1f}",
            "gone %": f"{100 * one.mean('gone'):.1f}",
        }
        rows.append(row | (_answer_columns(one) if with_answers else {}))
    caption = (
        "Survives: share of the object's tokens, merged ones by their weight, averaged over "
        "questions. Best: of the best set of as many tokens for all questions of a clip; best "
        "known: if it knows the question. Gone: questions of which no kept token is at least half "
        "the object."
    )
    if with_answers:
        caption += (
            " Lost: right with all tokens, wrong with the method, in % of the former; of the lost "
            "those whose evidence is gone, those of them that the best set would have kept, and "
            "those whose evidence is still there. Told by: probability that a question still "
            "answered right has a larger share than a lost one (0.5: it says nothing)."
        )
    return Table("evidence", "Every cell", caption, rows, shown=200)


def _answer_columns(one: Explained) -> dict[str, str]:
    """The table's columns about answers; dashes for a cell that the run lacks."""
    names = (
        *("accuracy %", "lost %", "lost: gone %", "lost: best keeps %", "lost: still there %"),
        *("told by evidence", "told by best"),
    )
    if one.answers is None:
        return dict.fromkeys(names, "-")
    lost, right = one.lost(), one.known["right"]
    separations = [
        separation(one.known[right][column].tolist(), one.known[~right][column].tolist())
        for column in ("share", "best_for_clip")
    ]
    values = [
        f"{100 * one.answers['right'].mean():.1f}",
        _percent(lost["all"], len(right)),
        _percent(lost["gone"], lost["all"]),
        _percent(lost["avoidable"], lost["all"]),
        _percent(lost["all"] - lost["gone"], lost["all"]),
        *("-" if value is None else f"{value:.2f}" for value in separations),
    ]
    return dict(zip(names, values, strict=True))


def _percent(part: int, whole: int) -> str:
    """Format `part / whole` in percent; a dash if `whole` is 0."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def _survival_curves(cells: Sequence[Explained], theme: Theme) -> Figure:
    """Surviving share, and share of questions without evidence, over the share of kept tokens."""
    figure, (left, right) = new_figure((11.6, 5.6), theme, columns=2)
    ordered = sorted(cells, key=lambda one: one.retention)
    for panel, measure, y in (
        (left, "share", "tokens of the object that survive (%)"),
        (right, "gone", "questions whose evidence is gone (%)"),
    ):
        series: dict[str, list[tuple[float, float]]] = {one.cell.series: [] for one in cells}
        for one in ordered:
            series[one.cell.series].append((100 * one.retention, 100 * one.mean(measure)))
        draw_series(panel, series, theme)
        panel.set_ylim(bottom=0)
        label(panel, theme, x="tokens kept (%)", y=y)
    kept = [100 * one.retention for one in ordered]
    for measure, dashes, name in (
        ("best_for_clip", (None, None), "best set for the clip"),
        ("best", (1, 1.5), "best set for the question"),
    ):
        values = [100 * one.mean(measure) for one in ordered]
        left.plot(kept, values, color=theme.foreground, dashes=dashes, linewidth=1.6, label=name)
    left.plot(kept, kept, color=theme.foreground, alpha=0.5, dashes=(5, 3), label="random set")
    left.set_ylim(0, 103)
    legend_below(figure, left, theme)
    return figure


def _by_bin(answered: Sequence[Explained], theme: Theme) -> Figure:
    """Accuracy, and share of questions, per bin of surviving shares."""
    figure, (left, right) = new_figure((11.6, 5.4), theme, columns=2)
    counts: dict[str, pd.DataFrame] = {}
    for one in answered:
        own = bins_of(one.known)
        counts[one.cell.series] = counts.get(one.cell.series, 0) + own
    total = sum(counts.values(), 0 * own)
    draw_series(left, {name: _accuracies(own) for name, own in counts.items()}, theme)
    pooled = np.array(_accuracies(total)).reshape(-1, 2).T
    style: dict[str, Any] = {"linewidth": 2.6, "marker": "o", "zorder": 5}
    left.plot(*pooled, color=theme.foreground, label="all cells", **style)
    places = np.arange(len(BINS))
    shares = 100 * total["number"] / max(1, total["number"].sum())
    bars = right.bar(places, shares, width=0.7, color=theme.series[5])
    numbers = [f"{number:,}" for number in total["number"]]
    right.bar_label(bars, numbers, fontsize=8.5, color=theme.foreground)
    left.set_ylim(0, 103)
    for panel, title, y in (
        (left, "Accuracy", "accuracy (%) on what all tokens answer"),
        (right, "Questions", "questions of all cells (%)"),
    ):
        panel.set_xticks(places, list(BINS), fontsize=8.5)
        label(panel, theme, title, "object's tokens that survive", y, grid="y")
    legend_below(figure, left, theme)
    return figure


def _accuracies(counts: pd.DataFrame) -> Points:
    """(index of the bin, accuracy in percent) of bins with enough questions."""
    pairs = zip(counts["number"], counts["right"], strict=True)
    return [
        (float(place), 100 * right / number)
        for place, (number, right) in enumerate(pairs)
        if number >= _FEWEST
    ]


def _lost_bars(cells: Sequence[Explained], theme: Theme) -> Figure:
    """Bars of every cell's lost answers by the state of their evidence."""
    figure, (panel,) = new_figure((10.4, 1.5 + 0.31 * len(cells)), theme)
    rows = np.arange(len(cells))
    lost = pd.DataFrame([one.lost() for one in cells], columns=["all", "gone", "avoidable"])
    lost = 100 * lost.div([max(1, len(one.known)) for one in cells], axis=0)
    start = np.zeros(len(cells))
    for name, values, colour in (
        ("gone, the best set keeps it", lost["avoidable"], theme.series[1]),
        ("gone, the best set loses it too", lost["gone"] - lost["avoidable"], theme.series[4]),
        ("still there", lost["all"] - lost["gone"], theme.series[0]),
    ):
        bars = panel.barh(rows, values, left=start, height=0.7, color=colour, label=name)
        start = start + values.to_numpy()
    texts = [f"{end:.1f}" for end in start]
    panel.bar_label(bars, texts, padding=3, fontsize=8.5, color=theme.foreground)
    panel.set_yticks(rows, [shortened(one.cell.series) for one in cells])
    panel.set_ylim(len(cells) - 0.4, -0.6)
    panel.set_xlim(0, max(1.0, 1.08 * float(start.max(initial=1.0))))
    label(panel, theme, x="answers lost, in % of those right with all tokens", grid="x")
    legend_above(figure, panel, theme)
    return figure
