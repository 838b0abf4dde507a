"""The language model as one explicit loop over the layers of transformers, with pruning between.

The layers are called, never changed but for their attention function (`attention.py`). Attention
probabilities for a pruner are recomputed from the layer's input and projections, so the fused
attention kernel runs in every layer. Models with unsupported attention (other classes, sliding
windows) are rejected by the constructor.

The caller computes the positions. Any shape whose last axis is the sequence works: (N,) for Qwen2,
(3, N) for the multimodal rotary embedding of Qwen2.5-VL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models.kernels import pack_linears
from tango_core.models.language.attention import (
    IMPLEMENTATION,
    Attend,
    LayerAttention,
    Recur,
    is_linear,
    pack_linear_attention,
    raise_if_unsupported,
)
from tango_core.models.placement import follow_weights, moved_to
from tango_core.ops.precision import full_precision
from tango_core.ops.saliency import positions_of
from tango_core.ops.transfer import upload


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


class LayerLoop:
    """Runs rows of embeddings through the layers of a language model.

    The layers may be on several devices; embedding, positions and results are on the first.

    Args:
        text_model: A text model of transformers, with `layers`, `norm`, `rotary_emb`,
            `embed_tokens` and `config`.
        lm_head: Output projection.

    Attributes:
        devices: Devices of the weights; that of the embedding first.

    Raises:
        ValueError: If the layers use a feature that this loop does not support.
    """

    def __init__(self, text_model: nn.Module, lm_head: nn.Module) -> None:
        model: Any = text_model
        raise_if_unsupported(model)
        model.set_attn_implementation(IMPLEMENTATION)
        self.config: Any = model.config
        self.rotary_emb: Any = model.rotary_emb
        self.embed_tokens: Any = model.embed_tokens
        self.layers: list[Any] = list(model.layers)
        for layer in filter(is_linear, self.layers):
            pack_linear_attention(layer.linear_attn)
        self.norm: Any = model.norm
        self.lm_head: Any = lm_head
        self.devices = (
            self.device,
            *follow_weights((*model.layers, model.norm, lm_head), self.device),
        )
        if self.dtype == torch.float32:  # others are mapped from their file and often shared
            pack_linears(self.layers, self.dtype, self.device)

    @property
    def device(self) -> torch.device:
        """Device of the embedding."""
        return self.embed_tokens.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the layers."""
        return self.embed_tokens.weight.dtype  # type: ignore[no-any-return]

    def embed(self, ids: Iterable[int]) -> Tensor:
        """(n, D) embeddings of token ids."""
        return self.embed_tokens(  # type: ignore[no-any-return]
            upload(torch.tensor(list(ids), dtype=torch.long), self.device)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and output projection of hidden states: (..., D) -> (..., vocabulary)."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        attend: Attend,
        recur: Recur | None = None,
        *,
        pruned: Sequence[PrunedRows] = (),
        shifted: Mapping[int, Tensor] | None = None,
        added: Additions | None = None,
    ) -> Tensor:
        """Run the rows of many sequences through all layers; `attend` separates sequences.

        Args:
            hidden: (N, D) embeddings of all rows.
            positions: (..., N) int64.
            attend: Receives queries, keys and values of every layer with full attention.
            recur: Receives the rows of every layer with linear attention; `None` if all rows are
                one sequence from its beginning.
            pruned: Sequences with a pruner, in the order of their rows. Their `start` and `length`
                are updated when tokens are dropped.
            shifted: Layer -> (..., N) positions used from that layer on.
            added: Rows added to the states after the first layers.

        Returns:
            (N', D) output of the last layer before the final normalisation.
        """
        hidden, positions = hidden[None], positions[..., None, :]
        layer_input, rotary = hidden, self.rotary(hidden, positions)
        for index, layer in enumerate(self.layers):
            if shifted and index in shifted:
                rotary = self.rotary(hidden, shifted[index][..., None, :])
            if any(index in prompt.at for prompt in pruned):
                hidden, positions = self.prune(
                    index, hidden, positions, layer_input, rotary, pruned, added
                )
                rotary = self.rotary(hidden, positions)
            layer_input = hidden
            work = recur if is_linear(layer) else attend
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary, work=work)
            if added is not None:
                hidden = added.after(index, hidden)
        return hidden[0].to(self.device)

    def prune(
        self,
        index: int,
        hidden: Tensor,
        positions: Tensor,
        layer_input: Tensor,
        rotary: tuple[Tensor, Tensor],
        pruned: Sequence[PrunedRows],
        added: Additions | None,
    ) -> tuple[Tensor, Tensor]:
        """Apply the pruners that act before a layer; other rows are unchanged.

        Args:
            index: Index of the next layer.
            hidden: (1, N, D) input of the next layer.
            positions: (..., 1, N) int64.
            layer_input: (1, N, D) input of the previous layer.
            rotary: Cosine and sine for the positions.
            pruned: All prompts with a pruner, in the order of their rows.
            added: DeepStack rows; updated to the remaining rows.

        Returns:
            `hidden` and `positions` of the remaining rows; remaining tokens keep their positions
            unless the pruner renumbers.

        Raises:
            ValueError: If a pruner drops text.
        """
        layer_input, positions, rotary = moved_to((layer_input, positions, rotary), hidden.device)
        every = torch.arange(hidden.shape[1], device=hidden.device)
        pieces: list[Tensor] = []
        stays: list[Tensor] = []
        renumbered: list[tuple[slice, Tensor]] = []
        done = dropped = 0
        for prompt in pruned:
            rows = slice(prompt.start, prompt.start + prompt.length)
            prompt.start -= dropped
            if index not in prompt.at:
                continue
            own = rotary[0][0, rows], rotary[1][0, rows]
            previous = self.layers[index - 1] if index else None
            before = LayerAttention(previous, layer_input[0, rows], own)
            ahead = LayerAttention(self.layers[index], hidden[0, rows], own)
            result = self._act(index, before, ahead, prompt)
            kept = result.keep
            if prompt.pruner.renumbers and counts(positions):
                numbers = positions[0, rows.start] + every[: len(kept)]
                renumbered.append((slice(prompt.start, prompt.start + len(kept)), numbers))
            pieces += [hidden[:, done : rows.start], result.hidden[None]]
            stays += [every[done : rows.start], kept + rows.start]
            done = rows.stop
            dropped += rows.stop - rows.start - len(kept)
        remaining = torch.cat([*stays, every[done:]])
        if added is not None:
            added.keep(remaining, len(every))
        positions = positions[..., remaining]
        for rows, numbers in renumbered:
            positions[..., rows] = numbers
        return torch.cat([*pieces, hidden[:, done:]], dim=1), positions

    def _act(
        self, index: int, before: LayerAttention, ahead: LayerAttention, prompt: PrunedRows
    ) -> Pruned:
        """Run a pruner on its prompt, check the result, and update the prompt."""
        visual, pruner, hidden = prompt.visual, prompt.pruner, ahead.states
        visual_indices, prompt.positions, prompt.left, prompt.scratch = moved_to(
            (visual.indices, prompt.positions, prompt.left, prompt.scratch), hidden.device
        )
        context = LayerContext(
            layer=index,
            num_layers=len(self.layers),
            hidden=hidden,
            visual=prompt.positions,
            after=prompt.length - visual.num_after,
            num_visual=len(visual.indices),
            previous_visual=prompt.left,
            grid=visual.grid,
            visual_indices=visual_indices,
            attention=before.probabilities,
            keys=before.keys,
            norm=lambda states: self.norm(states).to(states.device),
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

    def pruned_rows(
        self, pruner: LayerPruner, visual: VisualSpan, start: int, length: int
    ) -> PrunedRows:
        """The state of a prompt that a pruner will shorten.

        Raises:
            ValueError: If the pruner's layers do not exist.
        """
        left = torch.arange(len(visual.indices), device=visual.indices.device)
        at = frozenset(pruner.layers(len(self.layers)))
        return PrunedRows(pruner, visual, start, length, at, visual.positions, left)

    def rotary(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine for (..., 1, N) positions, in the dtype of the hidden states."""
        like, places = hidden.new_empty(0, device=self.device), positions.to(self.device)
        return self.rotary_emb(like, places)  # type: ignore[no-any-return]


def counts(positions: Tensor) -> bool:
    """Whether positions are (B, S) counts, as opposed to (3, B, S) coordinates."""
    return positions.ndim == 2


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
    ascending = (keep >= 0).all() & (keep < length).all() & (keep[1:] > keep[:-1]).all()
    text_left = (~is_visual[keep.clamp(0, length - 1)]).sum()
    if not fits or not bool(ascending & (text_left == (~is_visual).sum())):
        raise ValueError(
            f"{type(pruner).__name__} at layer {context.layer} must return ascending positions "
            f"that hold all text tokens, and one hidden state each; got {len(keep)} of {length}"
        )
    positions = positions_of(is_visual[keep], num_left)
    return positions, (is_visual.cumsum(dim=0) - 1)[keep[positions]]
