"""Two cells on the questions that both were asked: scores and speed."""

from __future__ import annotations

import numpy as np

from jobs.results.answer_columns import PRESENT, Mask, Values
from jobs.results.outcomes import FIRST, TTFT, Outcomes
from jobs.results.quantities import Comparison, DifferencesByGroup
from pipeline.progress.parts import Codes
from tango_core.metrics import Comparison as ScoreDifference
from tango_core.metrics import Metric, compare_clips


def compare_cells(
    ours: Outcomes, cell: str, theirs: Outcomes, other: str, *, profile: bool
) -> Comparison | None:
    """Compare two cells on the questions both were asked and whose answer is known.

    In profile mode also their speed: the other's median time over this cell's, on questions that
    both measured, for the language model alone and for vision, compression and language model
    together (as published speed-ups count).

    Args:
        ours: Outcomes of this cell's run, one benchmark.
        cell: This cell.
        theirs: Outcomes of the other cell's run, same benchmark.
        other: The other cell.
        profile: Whether both were measured in profile mode on one kind of device.

    Returns:
        Only the speed-ups if the two have no such question in common, and `None` without these.
    """
    place = places(ours, theirs)
    paired: dict[str, ScoreDifference | None] = {}
    by_group: dict[str, DifferencesByGroup] = {}
    for metric in ours.metrics:
        both, changes = _changes(metric, ours, cell, (theirs, other), place)
        paired[metric.name] = _paired(ours, both, changes)
        if groups := ours.question_groups.differences(both, changes):
            by_group[metric.name] = groups
    headline = ours.metrics[0].name
    also = {name: one for name, one in paired.items() if one is not None and name != headline}
    ratios: list[float | None] = [None, None]
    if profile:
        other_bits = np.append(theirs.bits(other), 0).astype(np.uint8)[place]
        both = ((ours.bits(cell) & PRESENT) > 0) & ((other_bits & PRESENT) > 0)
        ratios = [
            _speed_up(
                ours.times(cell, names)[both],
                np.append(theirs.times(other, names), np.nan)[place][both],
            )
            for names in (TTFT, FIRST)
        ]
    comparison = Comparison(paired[headline], ratios[0], ratios[1], also, by_group)
    return None if comparison == Comparison() else comparison


def _changes(
    metric: Metric, ours: Outcomes, cell: str, versus: tuple[Outcomes, str], place: Codes
) -> tuple[Mask, Values]:
    """(q,) where one metric has a value under both cells, and (q,) by how much it changes there."""
    theirs, other = versus
    counts, values = metric.count(ours.questions(cell))
    other_counts, other_values = metric.count(theirs.questions(other))
    both = counts & np.append(other_counts, False)[place]
    return both, values - np.append(other_values, 0.0)[place]


def _paired(ours: Outcomes, both: Mask, changes: Values) -> ScoreDifference | None:
    """The difference over all questions."""
    rose, fell = both & (changes > 0), both & (changes < 0)
    return compare_clips(
        ours.per_clip(rose, changes),
        ours.per_clip(fell, -changes),
        ours.per_clip(both),
        changed=(int(rose.sum()), int(fell.sum())),
    )


def places(ours: Outcomes, theirs: Outcomes) -> Codes:
    """(q,) where another run has the questions of this one; -1 for nowhere."""
    if ours is theirs:
        return np.arange(ours.num_questions)
    if not theirs.num_questions:
        return np.full(ours.num_questions, -1)
    order = np.argsort(theirs.keys)
    ordered = theirs.keys[order]
    at = np.minimum(np.searchsorted(ordered, ours.keys), len(ordered) - 1)
    return np.where(ordered[at] == ours.keys, order[at], -1)


def _speed_up(ours: Values, theirs: Values) -> float | None:
    """How much sooner a cell is done than the other one: a ratio of medians.

    Returns:
        `None` if there is no question that both measured.
    """
    known = ~np.isnan(ours) & ~np.isnan(theirs)
    if not known.any() or not np.median(ours[known]) > 0:
        return None
    return float(np.median(theirs[known]) / np.median(ours[known]))
