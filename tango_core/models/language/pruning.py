"""Apply a pruner between two layers.

Rows that are added to the states of visual tokens after the first layers (DeepStack) are dropped
together with their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models.language.attention import LayerAttention
from tango_core.models.placement import moved_to
from tango_core.ops.precision import full_precision
from tango_core.ops.saliency import positions_of


class Additions:
    """Rows that are added to the states of visual tokens after the first layers (DeepStack).

    Qwen3-VL's tower gives every token E more rows of the language model's width. Row i is added to
    the token's state after layer i, so that layers 1 to E see them. When a pruner drops or merges
    tokens, the remaining tokens keep their own rows.

    Args:
        rows: (n,) int64, ascending rows of the pass that have additions.
        values: (n, E, D).
    """

    def __init__(self, rows: Tensor, values: Tensor) -> None:
        self._rows = rows
        self._values = values

    def after(self, layer: int, hidden: Tensor) -> Tensor:
        """Add the rows of a layer to its output.

        Args:
            layer: 0-based index of the layer that has run.
            hidden: (1, N, D) its output; not written to.
        """
        if layer >= self._values.shape[1]:
            return hidden
        rows = self._rows.to(hidden.device)
        added = self._values[:, layer].to(hidden)
        return hidden.index_copy(1, rows, hidden[:, rows] + added)

    def keep(self, stays: Tensor, num_rows: int) -> None:
        """Update the row indices after rows of the pass were dropped.

        Args:
            stays: (N',) int64 ascending indices of the remaining rows.
            num_rows: N, number of rows before.
        """
        places = torch.full((num_rows,), -1, dtype=torch.int64, device=stays.device)
        places[stays] = torch.arange(len(stays), device=stays.device)
        found = places[self._rows.to(stays.device)]
        left = (found >= 0).nonzero()[:, 0]
        self._rows = found[left]
        self._values = self._values[left.to(self._values.device)]


@dataclass(frozen=True, eq=False)
class VisualSpan:
    """Positions of the clip in a sequence.

    Attributes:
        positions: (V,) int64, ascending positions of its tokens in the sequence; text may be
            between them.
        indices: (V,) int64 flat grid position of every visual token, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
        num_after: Number of text tokens after the clip.
        is_one_run: See `LayerContext`.
    """

    positions: Tensor
    indices: Tensor
    grid: tuple[int, int, int]
    num_after: int
    is_one_run: bool = False


@dataclass(eq=False)
class PrunedRows:
    """State of a prompt while a pruner shortens it between layers.

    Attributes:
        pruner: Drops visual tokens between layers.
        visual: Positions of the clip in the original sequence.
        start: First row of the sequence among all rows of the pass.
        length: Number of remaining prompt tokens. Rows behind them are generated tokens, which the
            pruner does not see.
        at: Layers before which the pruner acts.
        positions: (n,) int64 positions of the remaining visual tokens in the shortened sequence.
        left: (n,) int64 indices of the remaining visual tokens among the original ones.
        scratch: Values that the pruner stores between its layers for this prompt.
    """

    pruner: LayerPruner
    visual: VisualSpan
    start: int
    length: int
    at: frozenset[int]
    positions: Tensor
    left: Tensor
    scratch: dict[str, Any] = field(default_factory=dict)


def counts(positions: Tensor) -> bool:
    """Whether positions are (B, S) counts, as opposed to (3, B, S) coordinates."""
    return positions.ndim == 2


def prune_between(
    layers: Sequence[Any],
    norm: Any,
    index: int,
    hidden: Tensor,
    positions: Tensor,
    previous_input: Tensor,
    rotary: tuple[Tensor, Tensor],
    pruned: Sequence[PrunedRows],
    added: Additions | None,
) -> tuple[Tensor, Tensor]:
    """Apply the pruners that act before a layer; other rows are unchanged.

    Args:
        layers: All layers, from which attention for pruners is computed.
        norm: Final norm.
        index: Index of the next layer.
        hidden: (1, N, D) input of the next layer.
        positions: (..., 1, N) int64.
        previous_input: (1, N, D) input of the previous layer.
        rotary: Cosine and sine for the positions.
        pruned: All prompts with a pruner, in the order of their rows.
        added: DeepStack rows; updated to the remaining rows.

    Returns:
        `hidden` and `positions` of the remaining rows; remaining tokens keep their positions
        unless the pruner renumbers.

    Raises:
        ValueError: If a pruner drops text.
    """
    every = torch.arange(hidden.shape[1], device=hidden.device)
    pieces: list[Tensor] = []
    places: list[Tensor] = []
    stays: list[Tensor] = []
    done = dropped = 0
    for prompt in pruned:
        rows = slice(prompt.start, prompt.start + prompt.length)
        prompt.start -= dropped
        if index not in prompt.at:
            continue
        own = rotary[0][0, rows], rotary[1][0, rows]
        before = LayerAttention(layers[index - 1] if index else None, previous_input[0, rows], own)
        ahead = LayerAttention(layers[index], hidden[0, rows], own)
        result = _act(index, len(layers), norm, before, ahead, prompt)
        numbers, kept = positions[..., rows], result.keep
        if prompt.pruner.renumbers and counts(positions):
            numbered = numbers[..., :1] + torch.arange(len(kept), device=kept.device)
        else:
            numbered = numbers[..., kept]
        pieces += [hidden[:, done : rows.start], result.hidden[None]]
        places += [positions[..., done : rows.start], numbered]
        stays += [every[done : rows.start], kept + rows.start]
        done = rows.stop
        dropped += rows.stop - rows.start - len(kept)
    if added is not None:
        added.keep(torch.cat([*stays, every[done:]]), len(every))
    remaining = torch.cat([*pieces, hidden[:, done:]], dim=1)
    return remaining, torch.cat([*places, positions[..., done:]], dim=-1)


def _act(
    index: int,
    num_layers: int,
    norm: Any,
    before: LayerAttention,
    ahead: LayerAttention,
    prompt: PrunedRows,
) -> Pruned:
    """Run a pruner on its prompt, check the result, and update the prompt."""
    visual, pruner, hidden = prompt.visual, prompt.pruner, ahead.states
    visual_indices, prompt.positions, prompt.left, prompt.scratch = moved_to(
        (visual.indices, prompt.positions, prompt.left, prompt.scratch), hidden.device
    )
    context = LayerContext(
        layer=index,
        num_layers=num_layers,
        hidden=hidden,
        visual=prompt.positions,
        after=prompt.length - visual.num_after,
        num_visual=len(visual.indices),
        previous_visual=prompt.left,
        grid=visual.grid,
        visual_indices=visual_indices,
        attention=before.probabilities,
        keys=before.keys,
        norm=lambda states: norm(states).to(states.device),
        scratch=prompt.scratch,
        attention_ahead=ahead.probabilities,
        is_one_run=visual.is_one_run,
    )
    with full_precision():
        result = pruner.prune(context)
    prompt.positions, kept = visual_left(pruner, context, result)
    prompt.left = prompt.left[kept]
    prompt.length = len(result.keep)
    return result


def visual_left(
    pruner: LayerPruner, context: LayerContext, result: Pruned
) -> tuple[Tensor, Tensor]:
    """Find the visual tokens that stay.

    Returns:
        (n,) int64 positions in the shortened sequence, and (n,) int64 indices into the previous
        visual tokens.

    Raises:
        ValueError: If the pruner dropped text, or its result is inconsistent.
    """
    keep, (length, dim) = result.keep, context.hidden.shape
    is_visual = torch.zeros(length, dtype=torch.bool, device=keep.device)
    is_visual.index_fill_(0, context.visual, True)
    num_left = len(keep) - length + context.num_left
    fits = num_left >= 0 and tuple(result.hidden.shape) == (len(keep), dim)
    if not fits or not bool(_keeps_text(keep, is_visual)):
        raise ValueError(
            f"{type(pruner).__name__} at layer {context.layer} must return ascending positions "
            f"that hold all text tokens, and one hidden state each; got {len(keep)} of {length}"
        )
    positions = positions_of(is_visual[keep], num_left)
    return positions, (is_visual.cumsum(dim=0) - 1)[keep[positions]]


def _keeps_text(keep: Tensor, is_visual: Tensor) -> Tensor:
    """() bool, whether positions ascend, are in range and hold all text."""
    length = len(is_visual)
    in_range = (keep >= 0).all() & (keep < length).all() & (keep[1:] > keep[:-1]).all()
    text_left = (~is_visual[keep.clamp(0, length - 1)]).sum()
    return in_range & (text_left == (~is_visual).sum())
