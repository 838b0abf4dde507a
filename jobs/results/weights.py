"""Which cells the same weights answered, and what tells others of one model's name apart."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.results.cell_summary import CellSummary

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
    kinds: dict[str, dict[tuple[str, tuple[int, int] | None], CellSummary]] = {}
    for cell in cells:
        kind = checkpoint_of(cell), cell.llm_shape
        kinds.setdefault(cell.model, {}).setdefault(kind, cell)
    several = {
        model
        for model, own in kinds.items()
        if not all(same_weights(one, other) for one in own.values() for other in own.values())
    }
    return [
        _name(cell, list(kinds[cell.model].values())) if cell.model in several else ""
        for cell in cells
    ]


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


def _name(cell: CellSummary, kinds: Sequence[CellSummary]) -> str:
    """What a cell's weights are called among those of its model."""
    fitting = [kind for kind in kinds if same_weights(kind, cell)]
    checkpoints = {checkpoint_of(kind) for kind in fitting} - {""}
    shapes = {kind.llm_shape for kind in fitting} - {None}
    if len(checkpoints) == 1:
        return checkpoints.pop()[:_SHOWN]
    if checkpoints or len(shapes) != 1:
        return ""
    ((layers, width),) = (shape for shape in shapes if shape is not None)
    return f"{layers} layers of width {width}"
