"""A prompt under a pruner while it runs through the layers: what is left of it, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned


@dataclass(frozen=True, eq=False)
class VisualSpan:
    """Where the clip is in a sequence.

    Attributes:
        start: Position of its first token in the sequence.
        indices: (V,) int64 flat grid position of every visual token, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
    """

    start: int
    indices: Tensor
    grid: tuple[int, int, int]


@dataclass(eq=False)
class PrunedRows:
    """What is left of a prompt while it runs through the layers under a pruner.

    Attributes:
        pruner: Drops visual tokens between layers.
        visual: Where the clip is in this sequence.
        start: First row of the sequence among all rows of the pass.
        length: Tokens of the prompt still there. Rows behind them are tokens generated since, which
            a pruner is not shown.
        at: Layers before which the pruner acts.
        left: (n,) int64, of every visual token still there its index among the original ones.
        scratch: Memory of the pruner for this prompt.
    """

    pruner: LayerPruner
    visual: VisualSpan
    start: int
    length: int
    at: frozenset[int]
    left: Tensor
    scratch: dict[str, Any] = field(default_factory=dict)


def go_on(positions: Tensor, length: int) -> Tensor:
    """Positions whose rows behind the prompt of this length follow its last one, in steps of 1."""
    rest = positions.shape[-1] - length
    steps = torch.arange(1, rest + 1, device=positions.device)
    return torch.cat([positions[..., :length], positions[..., length - 1 : length] + steps], dim=-1)


def counts(positions: Tensor) -> bool:
    """Whether positions are (B, S) counts, as opposed to (3, B, S) coordinates."""
    return positions.ndim == 2


def num_visual_kept(pruner: LayerPruner, pruned: Pruned, context: LayerContext) -> int:
    """Count the visual tokens that stay, after checking that all text stays, in order."""
    length, dim = context.hidden.shape
    start, stop = context.visual.start, context.visual.stop
    keep = pruned.keep
    num_kept: int = len(keep) - (length - (stop - start))
    ok = (
        num_kept >= 0
        and tuple(pruned.hidden.shape) == (len(keep), dim)
        and bool(
            (keep[1:] > keep[:-1]).all()
            & (keep[:start] == torch.arange(start, device=keep.device)).all()
            & (keep[start + num_kept :] == torch.arange(stop, length, device=keep.device)).all()
        )
    )
    if not ok:
        raise ValueError(
            f"{type(pruner).__name__} at layer {context.layer} must return ascending positions "
            f"that hold all text tokens, and one hidden state each; got {len(keep)} of {length}"
        )
    return num_kept
