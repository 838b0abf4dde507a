"""A prompt under a pruner while it runs through the layers: what is left of it, and where."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, eq=False)
class Acted:
    """What a pruner did with its prompt at a layer."""

    pruner: LayerPruner
    pruned: Pruned
    context: LayerContext

    @property
    def num_visual(self) -> int:
        """Visual tokens that stay."""
        return len(self.pruned.keep) - len(self.context.hidden) + self.context.num_left


def raise_unless_text_stays(acted: Sequence[Acted]) -> None:
    """Check that all text stays, in order, in all prompts; the device is waited for once.

    Raises:
        ValueError: If a pruner dropped text, or its result does not fit together.
    """
    right = [_text_stays(one) for one in acted]
    on_device = [ok for ok in right if isinstance(ok, Tensor)]
    if len(on_device) == len(right) and (not right or bool(torch.stack(on_device).all())):
        return
    wrong = acted[[bool(ok) for ok in right].index(False)]
    raise ValueError(
        f"{type(wrong.pruner).__name__} at layer {wrong.context.layer} must return ascending "
        "positions that hold all text tokens, and one hidden state each; "
        f"got {len(wrong.pruned.keep)} of {len(wrong.context.hidden)}"
    )


def _text_stays(one: Acted) -> Tensor | bool:
    """() bool whether a prompt is all right; `False` where its shapes say that it is not."""
    keep, (length, dim) = one.pruned.keep, one.context.hidden.shape
    if one.num_visual < 0 or tuple(one.pruned.hidden.shape) != (len(keep), dim):
        return False
    is_visual = _is_visual(one.context)
    in_range = (keep >= 0).all() & (keep < length).all() & (keep[1:] > keep[:-1]).all()
    text_left = (~is_visual[keep.clamp(0, length - 1)]).sum()
    return in_range & (text_left == length - one.context.num_left)


def visual_left(one: Acted) -> tuple[Tensor, Tensor]:
    """Find the visual tokens that stay, after `raise_unless_text_stays`.

    Returns:
        (n,) int64 positions in the sequence that is left, and (n,) int64 indices into the visual
        tokens before.
    """
    is_visual, keep = _is_visual(one.context), one.pruned.keep
    positions = positions_of(is_visual[keep], one.num_visual)
    numbers = is_visual.cumsum(dim=0) - 1
    return positions, numbers[keep[positions]]


def _is_visual(context: LayerContext) -> Tensor:
    """(S,) bool."""
    is_visual = torch.zeros(len(context.hidden), dtype=torch.bool, device=context.hidden.device)
    return is_visual.index_fill_(0, context.visual, True)
