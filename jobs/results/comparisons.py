"""Families of paired comparisons whose p values are corrected together (Holm).

By group of the questions: every cell against all tokens, on the questions with one value of a
group. Against controls: every method of a retention beside the control there that has the highest
headline; a control is a cheap way to have fewer tokens (`CONTROLS` of `tango_core.compressors`).
VTC-Bench's filter (arXiv 2510.07143) divides the questions that all tokens answer by whether the
control answers them, too: on the others a method must earn its place.

All tokens of a smaller input (`CellSummary.input_size`: fewer pixels, a larger pooling step) are a
control, too. Their share is what they have of the tokens of the methods' own input; at a retention
stands the smaller input whose share is nearest to it, if it is near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from jobs.results.baselines import comparable
from jobs.results.cell_summary import CellSummary
from tango_core.compressors import CONTROLS
from tango_core.metrics import ACCURACY, Comparison, compare_paired
from tango_core.metrics.comparison import LEVEL, holm_adjusted

_FIGURES = ("num_questions", "num_clips", "num_gained", "num_lost", "difference")


def differences_by_group(cells: Sequence[CellSummary]) -> pd.DataFrame:
    """Every difference to `full` on the questions with one value of a group, the headline first.

    Differences of one benchmark, metric and group are looked at together, so their p values are
    corrected together: `p_value_holm`, for `num_comparisons`.

    Args:
        cells: Cells of one run or of several; those without a comparison are left out.

    Returns:
        A row per difference, with the columns of `differences_by_group.csv`; those that are
        corrected together follow each other, in the order of the cells, then of the values.
    """
    rows = []
    for cell in cells:
        by_metric = cell.versus_full.by_group if cell.versus_full else {}
        for metric in sorted(by_metric, key=lambda name: name != cell.metric):
            for group, values in by_metric[metric].items():
                for value, paired in values.items():
                    names = (cell.run_id, cell.model, cell.benchmark, cell.name, cell.method)
                    places = (cell.retention_requested, metric, group, value)
                    figures = (getattr(paired, name) for name in _FIGURES)
                    ends = (paired.low, paired.high, paired.too_few_clips, paired.p_value)
                    rows.append((*names, *places, *figures, *ends))
    header = [
        *("run_id", "model", "benchmark", "cell", "method", "retention", "metric", "group"),
        *("value", *_FIGURES, "difference_low", "difference_high", "too_few_clips", "p_value"),
    ]
    found = pd.DataFrame(rows, columns=header)
    families = found.groupby(["benchmark", "metric", "group"], sort=False)
    found["num_comparisons"] = families["p_value"].transform("size")
    adjusted = families["p_value"].transform(lambda values: holm_adjusted(list(values)))
    found["p_value_holm"] = adjusted
    return found.iloc[families.ngroup().argsort(kind="stable")]


# Shares of tokens that differ by less than this part of the control's are called equal.
EQUAL = 0.02
# A smaller input stands at a retention if its share differs by at most this part of it.
NEAR = 0.25
# Index of a cell -> its answers that count in the headline: a table with the questions' keys as
# index, `clip` (a key, too) and `score` (what the headline averages, in [0, 1]).
Answers = Callable[[int], pd.DataFrame]


@dataclass(frozen=True)
class Filtered:
    """Accuracy on the questions that all tokens answer, divided by what the control does.

    Attributes:
        num_hard: Questions the control answers wrongly.
        num_easy: Those it answers rightly.
        hard: Accuracy on the first, in [0, 1]; `None` if there are none.
        easy: Accuracy on the others; `None` if there are none.
    """

    num_hard: int
    num_easy: int
    hard: float | None
    easy: float | None


@dataclass(frozen=True)
class AgainstControl:
    """One method beside the best control.

    Attributes:
        cell: The method's.
        versus: Paired comparison with the control; `None` without a common question.
        p_value: That of `versus`, corrected for the number of methods at this retention.
        equal_tokens: Whether both keep the same share, to 2 % of it; `None` if it is not known.
        filtered: By VTC-Bench's filter; `None` where all tokens were not asked, or where
            replies are not right or wrong.
    """

    cell: CellSummary
    versus: Comparison | None
    p_value: float | None
    equal_tokens: bool | None
    filtered: Filtered | None

    @property
    def verdict(self) -> str:
        """`"better"`, `"worse"` or `"open"`."""
        if self.versus is None or self.p_value is None or self.p_value >= LEVEL:
            return "open"
        return "better" if self.versus.difference > 0 else "worse"


@dataclass(frozen=True)
class ControlledRetention:
    """All methods of one benchmark, model and retention beside the best control there.

    Attributes:
        retention: Share of the tokens asked for.
        control: The control with the highest headline; one of a smaller input is called by it, and
            its shares are of the methods' input.
        methods: In the order of the cells.
    """

    retention: float
    control: CellSummary
    methods: tuple[AgainstControl, ...]


def against_controls(
    cells: Sequence[CellSummary], answers: Answers
) -> tuple[ControlledRetention, ...]:
    """Compare the methods of every retention with the best control there.

    Args:
        cells: Of one run or of several.
        answers: What the cell at an index answered.

    Returns:
        One per group of comparable cells and retention that has a control and a method.
    """
    groups: list[list[int]] = []
    for index, cell in enumerate(cells):
        if cell.is_baseline:
            continue
        for group in groups:
            asked = cells[group[0]].retention_requested
            level = abs(asked - cell.retention_requested) < 1e-9
            # One that does not know its checkpoint or frames may stand beside two that differ.
            if level and all(comparable(cells[other], cell) for other in group):
                group.append(index)
                break
        else:
            groups.append([index])
    found = [_controlled(cells, group, answers) for group in groups]
    return tuple(one for one in found if one is not None)


def _controlled(
    cells: Sequence[CellSummary], group: Sequence[int], answers: Answers
) -> ControlledRetention | None:
    """The methods of a group beside its best control; `None` if it lacks one of both."""
    controls = {i: cells[i] for i in group if cells[i].method in CONTROLS and cells[i].headline}
    methods = [i for i in group if cells[i].method not in CONTROLS]
    members = [cells[index] for index in group]
    controls |= _smaller_input(cells, members)
    if not controls or not methods:
        return None
    best = max(controls, key=lambda at: one.value if (one := controls[at].headline) else 0.0)
    full = next(
        (
            index
            for index, cell in enumerate(cells)
            if cell.is_baseline and all(comparable(cell, one) for one in members)
        ),
        None,
    )
    control, whole = answers(best), None if full is None else answers(full)
    own = {index: answers(index) for index in methods}
    versus = {index: compare_answers(one, control) for index, one in own.items()}
    adjusted = iter(holm_adjusted([one.p_value for one in versus.values() if one is not None]))
    found = [
        AgainstControl(
            cells[index],
            versus[index],
            None if versus[index] is None else next(adjusted),
            _equal_tokens(cells[index], controls[best]),
            _filtered(cells[index], own[index], control, whole),
        )
        for index in methods
    ]
    return ControlledRetention(members[0].retention_requested, controls[best], tuple(found))


def _smaller_input(
    cells: Sequence[CellSummary], members: Sequence[CellSummary]
) -> dict[int, CellSummary]:
    """All tokens of the smaller input that is nearest to a group's retention, with its index.

    Tokens of two runs are only compared where both were asked the same questions.
    """
    own = members[0]
    asked = own.retention_requested
    found: dict[float, dict[int, CellSummary]] = {}
    for index, cell in enumerate(cells):
        alike = replace(cell, input_size=own.input_size)
        if (
            cell.is_baseline
            and cell.headline
            and cell.input_size
            and own.tokens_total
            and cell.questions_digest == own.questions_digest
            and all(comparable(alike, one) for one in members)
        ):
            share = cell.tokens_kept / own.tokens_total
            named = f"{cell.name} {cell.input_size}"
            if share < 1 and abs(share - asked) <= NEAR * asked:
                control = replace(cell, name=named, equivalent_retention=share)
                found.setdefault(abs(share - asked), {index: control})
    return found[min(found)] if found else {}


def compare_answers(own: pd.DataFrame, other: pd.DataFrame) -> Comparison | None:
    """Compare two cells on the questions both were asked."""
    both = own.join(other["score"].rename("other"), how="inner")
    return compare_paired(both["score"], both["other"], both["clip"])


def _filtered(
    cell: CellSummary, own: pd.DataFrame, control: pd.DataFrame, full: pd.DataFrame | None
) -> Filtered | None:
    """A method by VTC-Bench's filter."""
    if full is None or cell.metric != ACCURACY.name:
        return None
    every = [one["score"] == 1 for one in (own, control, full)]
    right = pd.concat(every, axis=1, join="inner", keys=["own", "control", "full"])
    known = right[right["full"]]
    hard, easy = known["own"][~known["control"]], known["own"][known["control"]]
    shares = (float(one.mean()) if len(one) else None for one in (hard, easy))
    return Filtered(len(hard), len(easy), *shares)


def _equal_tokens(cell: CellSummary, control: CellSummary) -> bool | None:
    """Whether two cells keep the same share of the tokens, averaged over the layers."""
    own, other = cell.equivalent_retention, control.equivalent_retention
    return None if own is None or other is None else abs(own - other) <= EQUAL * other
