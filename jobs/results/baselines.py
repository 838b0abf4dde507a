"""Find the baseline of a cell: `full`, another method, or the method listed before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

from jobs.results.cell_summary import CellSummary
from jobs.results.quantities import Comparison
from tango_core.benchmarks.protocols.protocol import harness_of
from tango_core.errors import InputError

# Digits of a digest that stand in tables; names of caches have as many.
_SHOWN = 12


def same_weights(cell: CellSummary, own: CellSummary) -> bool:
    """Whether two cells are of one checkpoint and of one size, as far as both are known.

    A checkpoint is known by the digest of its files, or by its commit on the hub, wherever it is.
    """
    checkpoints = {checkpoint_of(cell), checkpoint_of(own)} - {""}
    return len(checkpoints) < 2 and len({cell.llm_shape, own.llm_shape} - {None}) < 2


def checkpoint_of(cell: CellSummary) -> str:
    """What identifies the checkpoint; "" if unknown.

    Behind a plus stands a second checkpoint, which only says which tokens matter
    (`model.saliency_from`); all tokens have the same answers without it.
    """
    return cell.checkpoint.partition("+")[0]


def weights_names(cells: Sequence[CellSummary]) -> list[str]:
    """Per cell the first digits of its checkpoint, or its size, where its model has several.

    A cell that does not know its checkpoint is of the only one that it can be of. "" where it can
    be of several, or where all cells of the model can be of one.
    """
    several = {
        one.model
        for one, other in combinations(cells, 2)
        if one.model == other.model and not same_weights(one, other)
    }
    names = []
    for cell in cells:
        alike = [c for c in cells if c.model == cell.model and same_weights(c, cell)]
        checkpoints = {checkpoint_of(other) for other in alike} - {""}
        shapes = {other.llm_shape for other in alike if other.llm_shape}
        name = ""
        if cell.model in several:
            if len(checkpoints) == 1:
                name = checkpoints.pop()[:_SHOWN]
            elif not checkpoints and len(shapes) == 1:
                name = "{} layers of width {}".format(*shapes.pop())
        names.append(name)
    return names


def weights_notes(cells: Sequence[CellSummary]) -> list[str]:
    """A sentence per model whose runs have different checkpoints, and so are not compared."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for cell, name in zip(cells, weights_names(cells), strict=True):
        if name:
            found.setdefault(cell.model, {}).setdefault(name, {})[cell.run_id] = None
    sentences = []
    for model, named in found.items():
        listed = ", ".join(f"{name} ({', '.join(runs)})" for name, runs in named.items())
        sentences.append(
            f"Not compared with each other: runs of {model} with different checkpoints, {listed}."
        )
    return sentences


PREVIOUS = "previous"


def with_baselines(
    cells: Sequence[CellSummary],
    names: Sequence[str],
    compare: Callable[[int, int], Comparison | None],
) -> list[CellSummary]:
    """Add the paired comparison with every baseline to the cells that have one.

    A baseline is a method as the recipe names it, with its options and without its retention
    (`topk`, `tango budget=exact`), or `previous`: the method listed before. It is looked for at
    the cell's own retention, benchmark, protocol, model, weights and frames, in the cell's own run
    first. A cell's whole name (`topk r=0.1`) stands for that cell at every retention.

    Args:
        cells: Cells of one run or of several.
        names: Baselines, in the order in which they are shown.
        compare: Compares the cells at two indices, the second one being the baseline.

    Returns:
        The cells, each with its comparison per baseline in `versus`.

    Raises:
        ValueError: If a baseline is none of the methods.
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
    """Index of the `full` that a cell of another run is compared with; `None` if nobody ran it.

    It is of the same benchmark, model and frames, if there is one of the same checkpoint and under
    the same protocol.
    """
    return next((at for at in _alike(index, cells) if cells[at].is_baseline), None)


def _alike(index: int, cells: Sequence[CellSummary]) -> list[int]:
    """Indices of comparable cells: those of the same run, checkpoint and protocol first."""
    own = cells[index]
    return sorted(
        (at for at, cell in enumerate(cells) if comparable(cell, own)),
        key=lambda at: (
            cells[at].run_id != own.run_id,
            cells[at].checkpoint != own.checkpoint,
            cells[at].protocol != own.protocol,
        ),
    )


def comparable(cell: CellSummary, own: CellSummary) -> bool:
    """Whether two cells answered the same questions under one protocol, with one model and input.

    Prompts, and for some models frames, are the protocol's: a difference across protocols would not
    be that of the methods. Versions of a harness differ in its own score alone.
    """
    protocols = {harness_of(cell.protocol), harness_of(own.protocol)} - {""}
    return len(protocols) < 2 and _same_setting(cell, own)


def unpaired_notes(cells: Sequence[CellSummary]) -> list[str]:
    """Sentences about cells without a baseline: the reason, and what can be compared instead.

    Their `full` may have another protocol or checkpoint, or none of several runs has it. A single
    run without `full` is not mentioned.
    """
    several = len({cell.run_id for cell in cells}) > 1
    sentences = weights_notes(cells)
    for own, weights in zip(cells, weights_names(cells), strict=True):
        if own.is_baseline or own.versus_full is not None:
            continue
        full = [cell for cell in cells if cell.is_baseline and _same_setting(cell, own)]
        if any(comparable(cell, own) for cell in full):
            continue
        found = ", ".join(sorted({cell.protocol for cell in full}))
        if found:
            sentences.append(
                f"Not compared with all tokens: {own.model} on {own.benchmark} under "
                f"{own.protocol}; they were run under {found}, with other prompts or frames."
            )
        elif several:
            frames = f"{own.num_frames} frames" if own.num_frames else ""
            checkpoint = f"checkpoint {weights}" if weights else ""
            given = ", ".join(word for word in (checkpoint, frames, own.input_size) if word)
            sentences.append(
                f"Not compared with all tokens: {own.model} on {own.benchmark}"
                f"{f' with {given}' if given else ''}; nobody ran full for it. --baseline NAME "
                "compares methods with each other."
            )
    return list(dict.fromkeys(sentences))


def _same_setting(cell: CellSummary, own: CellSummary) -> bool:
    """Whether two cells are of one benchmark, model with its weights, frames and size of input."""
    # Imported answers and runs of earlier versions do not know their frames.
    frames = {cell.num_frames, own.num_frames} - {None}
    same = all(
        getattr(cell, name) == getattr(own, name) for name in ("benchmark", "model", "input_size")
    )
    return same and len(frames) < 2 and same_weights(cell, own)
