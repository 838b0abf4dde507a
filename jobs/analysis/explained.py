"""Evidence of a cell beside its answers: what was lost, and whether the object was still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from jobs.analysis.answered import Outcomes
from jobs.analysis.cells import Cell
from jobs.config.recipe import RecipeError
from tango_core.analysis.correlation import separation
from tango_core.analysis.evidence import Evidence
from tango_core.combination import Combination

# Upper ends of the bins of surviving shares; the first one holds what is gone altogether.
_ENDS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
BIN_NAMES = ("0", "0 to 10 %", "10 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 100 %")


@dataclass
class CellEvidence:
    """The evidence that a compressor leaves, question by question.

    Attributes:
        evidence: Video id and question id -> what is left.
        kept: Kept tokens of all clips.
        total: All tokens of all clips.
    """

    evidence: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    kept: int = 0
    total: int = 0

    def add(
        self, video: str, questions: Sequence[str], found: Sequence[Evidence], plan: Combination
    ) -> None:
        """Count one clip."""
        self.kept += plan.num_kept
        self.total += plan.num_total
        for question, one in zip(questions, found, strict=True):
            self.evidence[video, question] = one


@dataclass(frozen=True)
class Outcome:
    """Answers of a cell, beside the evidence.

    Attributes:
        accuracy: On all questions about objects, in [0, 1].
        num_right_in_full: Questions that are right with all tokens.
        num_lost: Of these, those that the method gets wrong.
        lost_gone: Of the lost, those whose evidence is gone.
        lost_avoidable: Of those, the ones whose evidence the best set of as many tokens keeps.
        num_gone: Questions right with all tokens whose evidence is gone.
        right_gone: Of these, those still right.
        num_kept: Questions right with all tokens whose evidence is left.
        right_kept: Of these, those still right.
        bins: Of the questions right with all tokens, per bin of `BIN_NAMES` how many there are and
            how many are right.
        told_by_evidence: Probability that a question still right has a larger surviving share than
            a lost one; `None` if there is none of either.
        told_by_best: The same of the best share possible.
    """

    accuracy: float
    num_right_in_full: int
    num_lost: int
    lost_gone: int
    lost_avoidable: int
    num_gone: int
    right_gone: int
    num_kept: int
    right_kept: int
    bins: tuple[tuple[int, int], ...]
    told_by_evidence: float | None
    told_by_best: float | None


@dataclass(frozen=True)
class Explained:
    """A cell with its evidence, and with its answers if there are any.

    Attributes:
        cell: Which one.
        retention: Share of the tokens that is really kept.
        share: Mean share of the object's tokens that survives.
        best: Mean share in the best set that knows the question.
        best_for_clip: Mean share in the best set for all questions of a clip.
        gone: Share of the questions whose evidence is gone.
        outcome: `None` without a run, or if it lacks the cell.
    """

    cell: Cell
    retention: float
    share: float
    best: float
    best_for_clip: float
    gone: float
    outcome: Outcome | None


def explain_cell(
    cell: Cell, own: CellEvidence, right: Outcomes | None, in_full: Outcomes | None
) -> Explained:
    """Put evidence and answers of a cell together.

    Args:
        cell: Which one.
        own: Its evidence.
        right: Its answers; `None` if there are none.
        in_full: The answers with all tokens; `None` if the run has none: every question then counts
            as one that all tokens answer.

    Raises:
        RecipeError: If the run was asked none of these questions.
    """
    found = list(own.evidence.values())
    return Explained(
        cell=cell,
        retention=own.kept / own.total,
        share=fmean(one.share for one in found),
        best=fmean(one.best for one in found),
        best_for_clip=fmean(one.best_for_clip for one in found),
        gone=fmean(one.gone for one in found),
        outcome=None if right is None else _outcome(cell, own.evidence, right, in_full),
    )


def _outcome(
    cell: Cell,
    evidence: dict[tuple[str, str], Evidence],
    right: Outcomes,
    in_full: Outcomes | None,
) -> Outcome:
    """What the evidence says about the answers."""
    asked = [key for key in evidence if key in right]
    if not asked:
        raise RecipeError(
            f"the run has no answers of {cell.name} to the questions of these clips; give the run "
            "itself instead of its recipe, or a --limit that it reaches"
        )
    known = [key for key in asked if in_full is None or in_full.get(key, False)]
    still = [evidence[key] for key in known if right[key]]
    lost = [evidence[key] for key in known if not right[key]]
    gone = [key for key in known if evidence[key].gone]
    there = [key for key in known if not evidence[key].gone]
    bins = [[0, 0] for _ in BIN_NAMES]
    for key in known:
        place = bin_of(evidence[key].share)
        bins[place][0] += 1
        bins[place][1] += right[key]
    return Outcome(
        accuracy=fmean(right[key] for key in asked),
        num_right_in_full=len(known),
        num_lost=len(lost),
        lost_gone=sum(one.gone for one in lost),
        lost_avoidable=sum(one.gone and one.best_for_clip > 0 for one in lost),
        num_gone=len(gone),
        right_gone=sum(right[key] for key in gone),
        num_kept=len(there),
        right_kept=sum(right[key] for key in there),
        bins=tuple((number, good) for number, good in bins),
        told_by_evidence=separation([e.share for e in still], [e.share for e in lost]),
        told_by_best=separation([e.best_for_clip for e in still], [e.best_for_clip for e in lost]),
    )


def bin_of(share: float) -> int:
    """Number of the bin of a surviving share."""
    if share <= 0:
        return 0
    return next(place for place, end in enumerate(_ENDS) if place and share <= end + 1e-9)
