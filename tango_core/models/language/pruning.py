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
from tango_core.models.placement import Spread
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


def rows_left(stays: Sequence[tuple[slice, Tensor]], hidden: Tensor) -> Tensor:
    """(N',) indices of the remaining rows of a pass.

    Args:
        stays: Per pruned prompt, in order: its rows, and the indices of those that stay.
        hidden: (1, N, D) states before pruning.
    """
    every = torch.arange(hidden.shape[1], device=hidden.device)
    pieces: list[Tensor] = []
    done = 0
    for rows, keep in stays:
        pieces += [every[done : rows.start], keep + rows.start]
        done = rows.stop
    return torch.cat([*pieces, every[done:]])


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


def go_on(positions: Tensor, length: int) -> Tensor:
    """Renumber the rows after the prompt consecutively from the prompt's last position."""
    rest = positions.shape[-1] - length
    steps = torch.arange(1, rest + 1, device=positions.device)
    return torch.cat([positions[..., :length], positions[..., length - 1 : length] + steps], dim=-1)


def counts(positions: Tensor) -> bool:
    """Whether positions are (B, S) counts, as opposed to (3, B, S) coordinates."""
    return positions.ndim == 2


@dataclass(frozen=True, eq=False)
class Acted:
    """Result of a pruner for one prompt at one layer."""

    pruner: LayerPruner
    pruned: Pruned
    context: LayerContext

    @property
    def num_visual(self) -> int:
        """Number of remaining visual tokens."""
        return len(self.pruned.keep) - len(self.context.hidden) + self.context.num_left


def raise_unless_text_stays(acted: Sequence[Acted]) -> None:
    """Check that pruners kept all text in order, with one device synchronisation for all prompts.

    Raises:
        ValueError: If a pruner dropped text, or its result is inconsistent.
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
    """() bool tensor whether the text is kept; `False` if the shapes are inconsistent."""
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
        (n,) int64 positions in the shortened sequence, and (n,) int64 indices into the previous
        visual tokens.
    """
    is_visual, keep = _is_visual(one.context), one.pruned.keep
    positions = positions_of(is_visual[keep], one.num_visual)
    numbers = is_visual.cumsum(dim=0) - 1
    return positions, numbers[keep[positions]]


def _is_visual(context: LayerContext) -> Tensor:
    """(S,) bool, whether a token is visual."""
    is_visual = torch.zeros(len(context.hidden), dtype=torch.bool, device=context.hidden.device)
    return is_visual.index_fill_(0, context.visual, True)


class BetweenLayers:
    """Shortens prompts between the layers of a language model.

    Args:
        spread: Layers and final norm, from which attention for pruners is computed.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._layers: list[Any] = spread.layers
        self._norm: Any = spread.norm

    def prune(
        self,
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
            index: Index of the next layer.
            hidden: (1, N, D) input of the next layer.
            positions: (..., 1, N) int64.
            previous_input: (1, N, D) input of the previous layer.
            rotary: Cosine and sine for the positions.
            pruned: All prompts with a pruner, in the order of their rows.
            added: DeepStack rows; updated to the remaining rows.

        Returns:
            `hidden` and `positions` of the remaining rows.

        Raises:
            ValueError: If a pruner drops text.
        """
        acted: list[Acted] = []
        for prompt in pruned:
            if index in prompt.at:
                rows = slice(prompt.start, prompt.start + prompt.length)
                own = rotary[0][0, rows], rotary[1][0, rows]
                acted.append(
                    self._act(index, hidden[0, rows], previous_input[0, rows], own, prompt)
                )
        raise_unless_text_stays(acted)
        results = iter(acted)
        pieces: list[Tensor] = []
        places: list[Tensor] = []
        stays: list[tuple[slice, Tensor]] = []
        done = dropped = 0
        for prompt in pruned:
            rows = slice(prompt.start, prompt.start + prompt.length)
            prompt.start -= dropped
            if index not in prompt.at:
                continue
            pieces.append(hidden[:, done : rows.start])
            places.append(positions[..., done : rows.start])
            shortened, kept, keep = _shorten(next(results), positions[..., rows], prompt)
            pieces.append(shortened[None])
            places.append(kept)
            stays.append((rows, keep))
            done = rows.stop
            dropped += rows.stop - rows.start - prompt.length
        pieces.append(hidden[:, done:])
        places.append(positions[..., done:])
        if added is not None:
            added.keep(rows_left(stays, hidden), hidden.shape[1])
        return torch.cat(pieces, dim=1), torch.cat(places, dim=-1)

    def _act(
        self,
        index: int,
        hidden: Tensor,
        previous_input: Tensor,
        rotary: tuple[Tensor, Tensor],
        prompt: PrunedRows,
    ) -> Acted:
        """Run a pruner on its prompt; its positions and length do not change yet."""
        visual, pruner = prompt.visual, prompt.pruner
        visual_indices, prompt.positions, prompt.left, *remembered = self._spread.together(
            hidden, visual.indices, prompt.positions, prompt.left, *prompt.scratch.values()
        )
        prompt.scratch.update(zip(prompt.scratch, remembered, strict=True))
        before = LayerAttention(
            self._layers[index - 1] if index > 0 else None, previous_input, rotary
        )
        ahead = LayerAttention(self._layers[index], hidden, rotary)
        context = LayerContext(
            layer=index,
            num_layers=len(self._layers),
            hidden=hidden,
            visual=prompt.positions,
            after=prompt.length - visual.num_after,
            num_visual=len(visual.indices),
            previous_visual=prompt.left,
            grid=visual.grid,
            visual_indices=visual_indices,
            attention=before.probabilities,
            keys=before.keys,
            norm=self._norm,
            scratch=prompt.scratch,
            attention_ahead=ahead.probabilities,
            is_one_run=visual.is_one_run,
        )
        with full_precision():
            return Acted(pruner, pruner.prune(context), context)


def _shorten(acted: Acted, positions: Tensor, prompt: PrunedRows) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a pruner's result; tokens keep their positions unless the pruner renumbers.

    Returns:
        States and positions of the remaining tokens, and their indices in the prompt.
    """
    pruned = acted.pruned
    prompt.positions, kept = visual_left(acted)
    prompt.left = prompt.left[kept]
    prompt.length = len(pruned.keep)
    if acted.pruner.renumbers and counts(positions):
        count = torch.arange(prompt.length, device=positions.device)
        return pruned.hidden, positions[..., :1] + count, pruned.keep
    return pruned.hidden, positions[..., pruned.keep], pruned.keep
