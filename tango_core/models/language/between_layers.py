"""What pruners do between two layers: each chooses, then its prompt is cut among the other rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tango_core.compressors.base import LayerContext
from tango_core.models.language.attention import LayerAttention
from tango_core.models.language.deepstack import Additions, rows_left
from tango_core.models.language.pruned_rows import (
    Acted,
    PrunedRows,
    counts,
    raise_unless_text_stays,
    visual_left,
)
from tango_core.models.language.spread import Spread
from tango_core.ops.precision import full_precision


class BetweenLayers:
    """Shortens prompts between the layers of a language model.

    Args:
        spread: Layers and final norm, which pruners look into.
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
        """Let the pruners of a layer shorten their prompts; other rows stay as they are.

        Args:
            index: Of the layer that comes next.
            hidden: (1, N, D) its input.
            positions: (..., 1, N) int64.
            previous_input: (1, N, D) input of the layer before it.
            rotary: Cosine and sine for the positions.
            pruned: Every prompt with a pruner, in the order of their rows.
            added: Follows the rows that stay.

        Returns:
            `hidden` and `positions` of the rows that stay.

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
        """Let a pruner choose; nothing of its prompt changes yet."""
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
    """Shorten a prompt as its pruner says; tokens keep their positions unless it renumbers.

    Returns:
        States, positions, and which tokens of the prompt they are.
    """
    pruned = acted.pruned
    prompt.positions, kept = visual_left(acted)
    prompt.left = prompt.left[kept]
    prompt.length = len(pruned.keep)
    if acted.pruner.renumbers and counts(positions):
        count = torch.arange(prompt.length, device=positions.device)
        return pruned.hidden, positions[..., :1] + count, pruned.keep
    return pruned.hidden, positions[..., pruned.keep], pruned.keep
