"""Which cells are comparable, and every method beside the best control.

The baseline of a cell is `full`, another method, or the method listed before it.

Against controls: every method of a retention beside the control there that has the highest
headline; a control is a cheap way to have fewer tokens (`CONTROLS` of `tango_core.compressors`).
Their p values are corrected together (Holm). VTC-Bench's filter (arXiv 2510.07143) divides the
questions that all tokens answer by whether the control answers them, too: on the others a method
must earn its place.

All tokens of a smaller input (`CellSummary.input_size`: fewer pixels, a larger pooling step) are a
control, too. Their share is what they have of the tokens of the methods' own input; at a retention
stands the smaller input whose share is nearest to it, if it is near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from jobs.results import quantities
from jobs.results.cell_summary import CellSummary
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.compressors import CONTROLS
from tango_core.errors import InputError
from tango_core.metrics import ACCURACY, Comparison, compare_paired
from tango_core.metrics.comparison import LEVEL, holm_adjusted

PREVIOUS = "previous"
# Digits of a digest that stand in tables; names of caches have as many.
_SHOWN = 12


class Setup(NamedTuple):
    """What cells must share to be compared, as texts; `None` is unknown.

    Versions of a harness differ in its own score alone, so only its name counts: prompts, and for
    some models frames, are its own.
    """

    model: str
    checkpoint: str | None
    size: str | None
    frames: str | None
    harness: str | None
    input_size: str

    def fits(self, other: Setup) -> bool:
        """Whether both are the same, as far as both are known."""
        return all(len({one, two} - {None}) < 2 for one, two in zip(self, other, strict=True))


def setup_of(cell: CellSummary) -> Setup:
    """The setup of a cell.

    A checkpoint is known by the digest of its files, or by its commit on the hub. Behind a plus
    stands a second one, which only says which tokens matter (`model.saliency_from`); all tokens
    have the same answers without it.
    """
    return Setup(
        cell.model,
        cell.checkpoint.partition("+")[0][:_SHOWN] or None,
        "{} layers of width {}".format(*cell.llm_shape) if cell.llm_shape else None,
        f"{cell.num_frames} frames" if cell.num_frames else None,
        harness_of(cell.protocol) or None,
        cell.input_size,
    )


def setups_of(cells: Sequence[CellSummary]) -> list[Setup]:
    """Setup of every cell; what it does not know is that of the other cells that can be alike."""
    every = [setup_of(cell) for cell in cells]
    found = []
    for own in every:
        alike = [other for other in every if own.fits(other)]
        known = ([v for v in set(values) if v is not None] for values in zip(*alike, strict=True))
        found.append(Setup._make(one[0] if len(one) == 1 else None for one in known))
    return found


def setup_names(setups: Sequence[Setup], leave_out: Sequence[str] = ()) -> list[str]:
    """Model of every setup, and what else its setups differ in."""
    names = []
    for own in setups:
        alike = {setup for setup in setups if setup.model == own.model}
        differing = [
            value
            for name, value in own._asdict().items()
            if name not in ("model", *leave_out) and len({getattr(s, name) for s in alike}) > 1
        ]
        names.append(", ".join(filter(None, [own.model, *differing])))
    return names


def comparable(cell: CellSummary, own: CellSummary) -> bool:
    """Whether two cells are of one benchmark and setup, as far as both are known."""
    return cell.benchmark == own.benchmark and setup_of(cell).fits(setup_of(own))


def with_baselines(
    cells: Sequence[CellSummary],
    names: Sequence[str],
    compare: Callable[[int, int], quantities.Comparison | None],
) -> list[CellSummary]:
    """Add the paired comparison with every baseline to the cells that have one.

    A baseline is a method as the recipe names it, with its options and without its retention
    (`topk`, `tango budget=exact`), or `previous`: the method listed before. It is looked for at
    the cell's own retention, benchmark and setup, in the cell's own run first. A cell's whole name
    (`topk r=0.1`) stands for that cell at every retention.

    Args:
        cells: Cells of one run or of several.
        names: Baselines, in the order in which they are shown.
        compare: Compares the cells at two indices, the second one being the baseline.

    Returns:
        The cells, each with its comparison per baseline in `versus`.

    Raises:
        InputError: If a baseline is none of the methods.
    """
    known = list(dict.fromkeys(cell.series for cell in cells))
    for name in names:
        if name not in (PREVIOUS, *known, *(cell.name for cell in cells)):
            raise InputError(
                f"--baseline {name!r} is none of the methods; choose {PREVIOUS!r} or one of: "
                f"{', '.join(known)}"
            )
    found = []
    for index, cell in enumerate(cells):
        others = {name: _baseline_index(index, cells, name) for name in names}
        versus = {n: None if at is None else compare(index, at) for n, at in others.items()}
        found.append(replace(cell, versus=versus))
    return found


def _baseline_index(index: int, cells: Sequence[CellSummary], name: str) -> int | None:
    """Index of the cell that a baseline means for one cell; `None` if there is none but itself."""
    own = cells[index]
    alike = _alike(index, cells)
    level = [at for at in alike if cells[at].retention_requested == own.retention_requested]
    if name == PREVIOUS:
        before = [at for at in level if at < index and cells[at].run_id == own.run_id]
        return max(before, default=None)
    matches = [at for at in level if cells[at].series == name]
    matches += [at for at in alike if cells[at].name == name]
    return matches[0] if matches and matches[0] != index else None


def full_index(index: int, cells: Sequence[CellSummary]) -> int | None:
    """Index of the `full` that a cell is compared with; `None` if nobody ran it."""
    return next((at for at in _alike(index, cells) if cells[at].is_baseline), None)


def _alike(index: int, cells: Sequence[CellSummary]) -> list[int]:
    """Indices of comparable cells: those of the same run, checkpoint and protocol first."""
    own = cells[index]
    return sorted(
        (at for at, cell in enumerate(cells) if comparable(cell, own)),
        key=lambda at: [
            getattr(cells[at], name) != getattr(own, name)
            for name in ("run_id", "checkpoint", "protocol")
        ],
    )


def unpaired_notes(cells: Sequence[CellSummary]) -> list[str]:
    """Sentences about cells of several runs whose setup has no `full`."""
    if len({cell.run_id for cell in cells}) < 2:
        return []
    notes = [
        f"Not compared with all tokens: {name} on {cell.benchmark}; nobody ran full for it. "
        "--baseline NAME compares methods with each other."
        for name, (at, cell) in zip(setup_names(setups_of(cells)), enumerate(cells), strict=True)
        if full_index(at, cells) is None
    ]
    return list(dict.fromkeys(notes))


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
