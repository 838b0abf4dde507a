"""What a `LayerPruner` is given at a layer (`LayerContext`), and what it returns (`Pruned`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tango_core.ops.saliency import positions_of


@dataclass(frozen=True)
class Pruned:
    """What a `LayerPruner` leaves of the sequence.

    Attributes:
        keep: (S',) int64, ascending; positions in the current sequence that stay. Text tokens
            always stay.
        hidden: (S', D) their hidden states, possibly merged.
    """

    keep: Tensor
    hidden: Tensor


@dataclass
class LayerContext:
    """What a `LayerPruner` may read at the input of layer `layer`, for one sequence.

    Attributes:
        layer: 0-based index of the layer about to run.
        num_layers: Layers of the language model.
        hidden: (S, D) input of this layer.
        visual: (n,) int64, ascending positions of the visual tokens (newline tokens included) in
            the current sequence. A clip may have text of its own between them (time stamps).
        after: Position of the first text token after the clip; there is at least one.
        num_visual: Visual tokens the prompt had before any in-LLM pruning.
        previous_visual: (n,) int64, for every visual token still here its index among the original
            `num_visual`.
        grid: (T, H, W) of the clip before any compression.
        visual_indices: (num_visual,) int64 flat grid positions of the prompt's visual tokens; -1
            for newline tokens.
        attention: `attention(rows)` gives the (heads, len(rows), S) float32 softmax probabilities
            of layer `layer - 1` for the queries at positions `rows`, causally masked, recomputed
            next to the fused kernel.
        keys: `keys()` gives the (S, kv_heads * head_dim) keys of layer `layer - 1` after the rotary
            embedding.
        norm: The language model's final normalisation.
        scratch: Values that a pruner keeps from one layer to the next, for this prompt only.
        attention_ahead: As `attention`, but of `layer` itself if it ran on all of `hidden`.
        is_one_run: Whether the visual tokens stand side by side, right before `after`; then they
            can be looked at without a copy.
    """

    layer: int
    num_layers: int
    hidden: Tensor
    visual: Tensor
    after: int
    num_visual: int
    previous_visual: Tensor
    grid: tuple[int, int, int]
    visual_indices: Tensor
    attention: Callable[[Tensor], Tensor]
    keys: Callable[[], Tensor]
    norm: Callable[[Tensor], Tensor]
    scratch: dict[str, Any] = field(default_factory=dict)
    attention_ahead: Callable[[Tensor], Tensor] | None = None
    is_one_run: bool = False

    @property
    def num_left(self) -> int:
        """Visual tokens still in the sequence."""
        return len(self.visual)

    @property
    def states(self) -> Tensor:
        """(n, D) states of the visual tokens still in the sequence; not to be written to."""
        if self.is_one_run:
            return self.hidden[self._start : self.after]
        return self.hidden.index_select(0, self.visual)

    @property
    def _start(self) -> int:
        """Position of the first visual token of a run."""
        return self.after - self.num_left

    def last_token_scores(self, *, ahead: bool = False) -> Tensor:
        """Attention of the prompt's last token to every visual token, averaged over heads.

        Args:
            ahead: Of layer `layer` instead of the one before it.

        Returns:
            (n,) float32.

        Raises:
            ValueError: If the attention of that layer is not available.
        """
        attention = self.attention_ahead if ahead else self.attention
        if attention is None:
            raise ValueError(f"the attention of layer {self.layer} is not available to its pruner")
        length = len(self.hidden)
        last = torch.arange(length - 1, length, device=self.hidden.device)
        return attention(last)[:, 0, self.visual].mean(dim=0)

    def positions_with(self, kept: Tensor) -> Tensor:
        """Positions of all text tokens and of some visual ones, ascending.

        Args:
            kept: (k,) int64 ascending indices into the visual tokens still in the sequence.
        """
        length = len(self.hidden)
        if self.is_one_run:
            every = torch.arange(length, device=self.hidden.device)
            return torch.cat([every[: self._start], kept + self._start, every[self.after :]])
        stays = torch.ones(length, dtype=torch.bool, device=self.hidden.device)
        stays.index_fill_(0, self.visual, False)
        stays.index_fill_(0, self.visual[kept], True)
        return positions_of(stays, length - self.num_left + len(kept))

    def places_of(self, kept: Tensor) -> Tensor:
        """Where some visual tokens are in the sequence that is left when the others have gone.

        Args:
            kept: (k,) int64 ascending indices into the visual tokens still in the sequence.

        Returns:
            (k,) int64 positions in what `positions_with` gives.
        """
        return self.visual[kept] - kept + torch.arange(len(kept), device=kept.device)

    def select(self, kept: Tensor) -> Pruned:
        """Keep the visual tokens at (k,) ascending `kept` and all text, unchanged."""
        keep = self.positions_with(kept)
        if len(keep) == len(self.hidden):
            return Pruned(keep, self.hidden.clone())
        return Pruned(keep, self.hidden.index_select(0, keep))

    def select_merged(self, kept: Tensor, states: Tensor) -> Pruned:
        """Keep the visual tokens at (k,) ascending `kept` with new (k, D) states, and all text."""
        keep = self.positions_with(kept)
        if self.is_one_run:
            before, after = self.hidden[: self._start], self.hidden[self.after :]
            return Pruned(keep, torch.cat([before, states.to(self.hidden.dtype), after]))
        hidden = self.hidden.index_select(0, keep)
        hidden.index_copy_(0, self.places_of(kept), states.to(hidden.dtype))
        return Pruned(keep, hidden)
