"""Every cell against others of its own retention: a method by name, or the one listed before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobs.report.tables.cells import series_name
from jobs.results.summary import BASELINE
from tango_core.benchmarks.protocols.versions import harness_of

PREVIOUS = "previous"

Cell = dict[str, Any]


def with_baselines(
    cells: Sequence[Cell], names: Sequence[str], compare: Callable[[int, int], Cell | None]
) -> list[Cell]:
    """Add the paired comparison with every baseline to the cells that have one.

    A baseline is a method as the recipe names it, with its options and without its retention
    (`topk`, `tango budget=exact`), or `previous`: the method listed before. It is looked for at
    the cell's own retention, benchmark, protocol, model and frames, in the cell's own run first. A
    cell's whole name (`topk r=0.1`) stands for that cell at every retention.

    Args:
        cells: Flat summaries with `run_id`, `model` and `num_frames`.
        names: Baselines, in the order in which they are shown.
        compare: Compares the cells at two indices, the second one being the baseline.

    Returns:
        The cells with `versus`: baseline -> comparison, or `None` where there is none.

    Raises:
        ValueError: If a baseline is none of the methods.
    """
    known = list(dict.fromkeys(series_name(cell) for cell in cells))
    for name in names:
        if name not in (PREVIOUS, *known, *(cell["cell"] for cell in cells)):
            raise ValueError(
                f"--baseline {name!r} is none of the methods; choose {PREVIOUS!r} or one of: "
                f"{', '.join(known)}"
            )
    found = []
    for index, cell in enumerate(cells):
        places = {name: _place(index, cells, name) for name in names}
        versus = {
            name: None if place is None else compare(index, place) for name, place in places.items()
        }
        found.append({**cell, "versus": versus})
    return found


def _place(index: int, cells: Sequence[Cell], name: str) -> int | None:
    """Index of the cell that a baseline means for one cell; `None` if there is none but itself."""
    own = cells[index]
    alike = [other for other, cell in enumerate(cells) if comparable(cell, own)]
    level = [
        other
        for other in alike
        if cells[other]["retention_requested"] == own["retention_requested"]
    ]
    if name == PREVIOUS:
        before = [
            other for other in level if other < index and cells[other]["run_id"] == own["run_id"]
        ]
        return before[-1] if before else None
    matches = [other for other in level if series_name(cells[other]) == name]
    matches += [other for other in alike if cells[other]["cell"] == name]
    matches.sort(
        key=lambda other: (
            cells[other]["run_id"] != own["run_id"],
            cells[other]["protocol"] != own["protocol"],
        )
    )
    return matches[0] if matches and matches[0] != index else None


def comparable(cell: Cell, own: Cell) -> bool:
    """Whether two cells answered the same questions under one protocol, with one model and frames.

    Prompts, and for some models frames, are the protocol's: a difference across protocols would not
    be that of the methods.
    """
    return same_protocol(cell, own) and _same_setting(cell, own)


def same_protocol(cell: Cell, own: Cell) -> bool:
    """Whether two cells were asked under one protocol, as far as is known.

    Versions of a harness differ in its own score alone.
    """
    names = {harness_of(str(entry.get("protocol") or "")) for entry in (cell, own)}
    return len(names - {""}) < 2


def unpaired_notes(cells: Sequence[Cell]) -> list[str]:
    """Sentences about cells without a difference, whose `full` was run under other protocols."""
    sentences = []
    for own in cells:
        if own["method"] == BASELINE or own["versus_full"] is not None:
            continue
        full = [c for c in cells if c["method"] == BASELINE and _same_setting(c, own)]
        found = ", ".join(sorted({str(cell["protocol"]) for cell in full}))
        if found:
            sentences.append(
                f"Not compared with all tokens: {own['model']} on {own['benchmark']} under "
                f"{own['protocol']}; they were run under {found}, with other prompts or frames."
            )
    return list(dict.fromkeys(sentences))


def _same_setting(cell: Cell, own: Cell) -> bool:
    """Whether two cells are of one benchmark, model and number of frames."""
    # Imported answers and runs of earlier versions do not know their frames.
    frames = {cell["num_frames"], own["num_frames"]} - {None}
    same = all(cell[field] == own[field] for field in ("benchmark", "model"))
    return same and len(frames) < 2
