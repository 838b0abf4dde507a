"""Find the baseline of a cell: `full`, another method, or the method listed before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from jobs.results.cell_summary import CellSummary
from jobs.results.quantities import Comparison
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.errors import InputError

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

    A checkpoint is known by the digest of its files, or by its commit on the hub.
    """
    return Setup(
        cell.model,
        checkpoint_of(cell) or None,
        "{} layers of width {}".format(*cell.llm_shape) if cell.llm_shape else None,
        f"{cell.num_frames} frames" if cell.num_frames else None,
        harness_of(cell.protocol) or None,
        cell.input_size,
    )


def checkpoint_of(cell: CellSummary) -> str:
    """What identifies the checkpoint; "" if unknown.

    Behind a plus stands a second checkpoint, which only says which tokens matter
    (`model.saliency_from`); all tokens have the same answers without it.
    """
    return cell.checkpoint.partition("+")[0][:_SHOWN]


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
    compare: Callable[[int, int], Comparison | None],
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
