"""A prompt under a pruner while it runs through the layers: what is left of it, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.ops.saliency import positions_of


@dataclass(frozen=True, eq=False)
class VisualSpan:
    """Where the clip is in a sequence.

    Attributes:
        positions: (V,) int64, ascending positions of its tokens in the sequence; text may stand
            between them.
        indices: (V,) int64 flat grid position of every visual token, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
        num_after: Text tokens after the clip.
        is_one_run: See `LayerContext`.
    """

    positions: Tensor
    indices: Tensor
    grid: tuple[int, int, int]
    num_after: int
    is_one_run: bool = False


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
        positions: (n,) int64 where the visual tokens still there are in the sequence now.
        left: (n,) int64, of every visual token still there its index among the original ones.
        scratch: Memory of the pruner for this prompt.
    """

    pruner: LayerPruner
    visual: VisualSpan
    start: int
    length: int
    at: frozenset[int]
    positions: Tensor
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
    keep = pruned.keep
    num_text = length - context.num_left
    ok = len(keep) >= num_text and tuple(pruned.hidden.shape) == (len(keep), dim)
    if ok:
        is_visual = _is_visual(context)
        in_range = (keep >= 0).all() & (keep < length).all() & (keep[1:] > keep[:-1]).all()
        text_left = (~is_visual[keep.clamp(0, length - 1)]).sum()
        ok = bool(in_range & (text_left == num_text))
    if not ok:
        raise ValueError(
            f"{type(pruner).__name__} at layer {context.layer} must return ascending positions "
            f"that hold all text tokens, and one hidden state each; got {len(keep)} of {length}"
        )
    return len(keep) - num_text


def visual_left(pruned: Pruned, context: LayerContext, count: int) -> tuple[Tensor, Tensor]:
    """Find the visual tokens that stay.

    Args:
        pruned: What `num_visual_kept` has checked.
        context: What the pruner was given.
        count: From `num_visual_kept`.

    Returns:
        (count,) int64 positions in the sequence that is left, and (count,) int64 indices into the
        visual tokens before.
    """
    is_visual = _is_visual(context)
    positions = positions_of(is_visual[pruned.keep], count)
    numbers = is_visual.cumsum(dim=0) - 1
    return positions, numbers[pruned.keep[positions]]


def _is_visual(context: LayerContext) -> Tensor:
    """(S,) bool."""
    is_visual = torch.zeros(len(context.hidden), dtype=torch.bool, device=context.hidden.device)
    return is_visual.index_fill_(0, context.visual, True)
