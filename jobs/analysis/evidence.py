"""`tango analyze evidence`: what is left of the objects asked about, and what that explains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from jobs.analysis.answered import Outcomes, outcomes
from jobs.analysis.cells import JobCells, common_retention
from jobs.analysis.clips import JobClips
from jobs.analysis.command import Places, finish, subtitle
from jobs.analysis.explained import BIN_NAMES, CellEvidence, Explained, explain_cell
from jobs.analysis.figures.evidence import by_bin, lost_bars, survival_curves
from jobs.analysis.page import Drawing, Page, Table
from jobs.config.recipe import Job, RecipeError
from jobs.results.cell_summary import BASELINE
from jobs.run.build import GENERATED
from pipeline.rows import Clip, questions_of
from tango_core.analysis.evidence import LEAST_PURITY, left_of
from tango_core.benchmarks.shapes.evidence import LEAST_COVER, clip_of, sprites_asked, tokens_of
from tango_core.types import VisualFeatures

# Bars of the figure of lost answers.
_MOST_BARS = 28


def analyze_evidence(job: Job, run: Path | None, places: Places, console: Console) -> int:
    """Follow the tokens of the objects that questions are about through the recipe's methods.

    Args:
        job: A recipe on the benchmark `shapes`, where it is known what every token shows.
        run: A run of this recipe, whose errors are explained; `None` for none.
        places: Where to read and write.
        console: Where to print.

    Returns:
        0, or 1 if more clips failed than `max_failures` allows.

    Raises:
        RecipeError: If the benchmark is another one, no clip could be decoded, or a method needs a
            signal that the encoder lacks.
    """
    names = [section.name for section in job.all_benchmarks]
    if names != [GENERATED]:
        raise RecipeError(
            f"benchmark.name {', '.join(names)}: only {GENERATED} knows which tokens show what a "
            "question is about; use a recipe or a run on it, or `tango analyze coverage`"
        )
    clips = JobClips(job, places.cache_root)
    cells = JobCells(clips)
    found = {cell.cache: CellEvidence() for cell in cells.cells}
    looked_at = without = 0
    for row in clips.rows():
        features = clips.features_of(row, cells.needs)
        if features is None:
            continue
        plans = cells.plans(features)
        any_plan = next(iter(plans.values()))
        looked_at += 1
        asked, objects = _objects(row, any_plan.timestamps, any_plan.grid[1:], features)
        without += len(questions_of(row)) - len(asked)
        for name, own in found.items():
            plan = plans[name]
            own.add(row.video_id, asked, left_of(plan, objects), plan)
    clips.raise_if_none(looked_at)
    if not any(own.evidence for own in found.values()):
        raise RecipeError("no question of these clips is about an object; use more clips (--limit)")
    answered = {} if run is None else outcomes(run, GENERATED)
    explained = [
        explain_cell(cell, found[cell.cache], answered.get(cell.name), answered.get(BASELINE))
        for cell in cells.cells
    ]
    page = _page(explained, cells, without, answered, subtitle(clips, looked_at))
    return finish(page, job, clips, places.folder, console)


def _objects(
    row: Clip, times: Tensor, grid: tuple[int, int], features: VisualFeatures | None
) -> tuple[list[str], Tensor]:
    """Ids of the questions about objects, and (Q, T * L) the tokens of each."""
    clip = clip_of(row.video_id)
    ids, masks = [], []
    seconds = (times if features is None else features.timestamps).tolist()
    for question in questions_of(row):
        sprites = sprites_asked(clip, question)
        shown = tokens_of(clip, sprites, seconds, grid)
        if sprites and shown.any():
            ids.append(question.id)
            masks.append(torch.from_numpy(shown).flatten())
    total = len(seconds) * grid[0] * grid[1]
    return ids, torch.stack(masks) if masks else torch.zeros(0, total, dtype=torch.bool)


def _page(
    explained: list[Explained],
    cells: JobCells,
    without: int,
    answered: Mapping[str, Outcomes],
    about: str,
) -> Page:
    """What was found."""
    pruned = [one for one in explained if one.cell.compressor.outer_retention < 1]
    share = common_retention(cells.cells)
    at_share = [one for one in pruned if one.cell.retention == share]
    best = max(at_share, key=lambda one: one.share)
    least = min(at_share, key=lambda one: one.share)
    findings = [
        f"at retention {share:g}: most of the object's tokens survive with {best.cell.series} "
        f"({100 * best.share:.0f} %), fewest with {least.cell.series} ({100 * least.share:.0f} %); "
        f"the best set for all questions of a clip would keep {100 * best.best_for_clip:.0f} %"
    ]
    drawings = [
        Drawing(
            "survival",
            "Share of the questioned object's tokens that survive",
            "A kept token counts with the share of its weight that comes from the object. Black: "
            "the best set of as many tokens, solid if it must serve all questions about the clip, "
            "dotted if it knows the question; dashed grey: a random selection.",
            partial(survival_curves, pruned),
        )
    ]
    tables = [_cells_table(explained, bool(answered))]
    if any(one.outcome for one in pruned):
        findings += _errors_in_words(pruned)
        drawings += [
            Drawing(
                "accuracy_by_evidence",
                "Accuracy by the evidence that is left",
                "Questions that the model answers with all tokens, by the share of the object's "
                "tokens that survives; all pruned cells together in black. Right: how the "
                "questions are spread over these bins.",
                partial(by_bin, pruned),
            ),
            Drawing(
                "lost",
                f"Why answers are lost, at retention {share:g}",
                "Questions that are right with all tokens and wrong with the method, in % of those "
                "right with all tokens. Gone: no kept token shows at least half of the object.",
                partial(lost_bars, at_share[:_MOST_BARS]),
            ),
        ]
        tables.append(_bins_table(pruned))
    return Page(
        title="Evidence: what is left of what questions are about",
        subtitle=about,
        findings=findings,
        notes=[
            f"a token shows an object that covers at least {100 * LEAST_COVER:g} % of it; "
            f"{without} question(s) about no object (which scene comes first or last) are left out",
            *cells.notes,
        ],
        drawings=drawings,
        tables=tables,
    )


def _errors_in_words(pruned: list[Explained]) -> list[str]:
    """What evidence explains, over all pruned cells."""
    told = [one.outcome for one in pruned if one.outcome is not None]
    lost = sum(one.num_lost for one in told)
    gone = sum(one.lost_gone for one in told)
    avoidable = sum(one.lost_avoidable for one in told)
    kept = sum(one.num_kept for one in told)
    right_kept = sum(one.right_kept for one in told)
    num_gone = sum(one.num_gone for one in told)
    right_gone = sum(one.right_gone for one in told)
    if not lost:
        return ["no answer is lost to any method"]
    sentences = [
        f"of {lost} answers that are right with all tokens and wrong with a method, "
        f"{100 * gone / lost:.0f} % have their evidence gone (no kept token is at least "
        f"{100 * LEAST_PURITY:g} % the object); the best set of as many tokens would have kept it "
        f"in {100 * avoidable / lost:.0f} %"
    ]
    if kept and num_gone:
        sentences.append(
            f"accuracy on what all tokens answer: {100 * right_kept / kept:.1f} % where evidence "
            f"is left, {100 * right_gone / num_gone:.1f} % where it is gone"
        )
    return sentences


def _cells_table(explained: list[Explained], with_answers: bool) -> Table:
    """All cells."""
    columns = ["cell", "kept %", "survives %", "best %", "best known %", "gone %"]
    more = [
        "accuracy %",
        "lost %",
        "lost: gone %",
        "lost: best keeps %",
        "lost: still there %",
        "told by evidence",
        "told by best",
    ]
    rows = []
    for one in explained:
        row = [
            one.cell.name,
            f"{100 * one.retention:.2f}",
            f"{100 * one.share:.1f}",
            f"{100 * one.best_for_clip:.1f}",
            f"{100 * one.best:.1f}",
            f"{100 * one.gone:.1f}",
        ]
        told = one.outcome
        if with_answers and told is None:
            row += ["-"] * len(more)
        elif told is not None:
            row += [
                f"{100 * told.accuracy:.1f}",
                _percent(told.num_lost, told.num_right_in_full),
                _percent(told.lost_gone, told.num_lost),
                _percent(told.lost_avoidable, told.num_lost),
                _percent(told.num_lost - told.lost_gone, told.num_lost),
                _number(told.told_by_evidence),
                _number(told.told_by_best),
            ]
        rows.append(row)
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
    return Table(
        "evidence",
        "Every cell",
        caption,
        [*columns, *(more if with_answers else [])],
        rows,
        shown=200,
    )


def _bins_table(pruned: list[Explained]) -> Table:
    """Accuracy by bin."""
    rows = [
        [one.cell.name, name, str(number), _percent(right, number)]
        for one in pruned
        if one.outcome is not None
        for name, (number, right) in zip(BIN_NAMES, one.outcome.bins, strict=True)
    ]
    return Table(
        "accuracy_by_evidence",
        "Accuracy by the evidence that is left",
        "Of the questions that are right with all tokens.",
        ["cell", "survives", "questions", "accuracy %"],
        rows,
        shown=2 * len(BIN_NAMES),
    )


def _percent(part: int, whole: int) -> str:
    """A share in percent; a dash of nothing."""
    return f"{100 * part / whole:.1f}" if whole else "-"


def _number(value: float | None) -> str:
    """Two digits, or a dash."""
    return "-" if value is None else f"{value:.2f}"
