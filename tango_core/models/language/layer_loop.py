"""The language model as one explicit loop over stock layers: prefill, pruning, and decoding.

The layers are called, never changed: no hooks, no replaced methods. Attention probabilities for a
pruner are recomputed from the layer's input and projections (`attention.py`), so the fused
attention kernel runs in every layer. Models with unsupported features (sliding windows, soft-capped
logits) are rejected by the constructor.

The caller computes the positions. Any shape whose last two axes are (batch, sequence) works: (B, S)
for Qwen2, (3, B, S) for the multimodal rotary embedding of Qwen2.5-VL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.compressors.base import LayerPruner
from tango_core.errors import InputError
from tango_core.models.kernels import can_compile, compiled
from tango_core.models.language.attention import Attend, raise_if_unsupported
from tango_core.models.language.pruning import (
    Additions,
    BetweenLayers,
    PrunedRows,
    VisualSpan,
    go_on,
)
from tango_core.models.placement import Spread, device_of
from tango_core.ops.transfer import upload

_NO_SHIFTS: Mapping[int, Tensor] = MappingProxyType({})


class LayerLoop:
    """Runs sequences of embeddings through the layers of a language model.

    Args:
        text_model: A stock text model: `layers`, `norm`, `rotary_emb`, `embed_tokens`, `config`.
        lm_head: Output projection.
        compiles: Whether `run_packed` may use compiled layers.

    Raises:
        ValueError: If the layers use a feature that this loop does not support.
    """

    def __init__(self, text_model: nn.Module, lm_head: nn.Module, compiles: bool = False) -> None:
        model: Any = text_model
        raise_if_unsupported(model)
        self.config: Any = model.config
        self.rotary_emb: Any = model.rotary_emb
        self.embed_tokens: Any = model.embed_tokens
        self.spread = Spread(model.layers, model.norm, lm_head, device_of(model.embed_tokens))
        self.layers: list[Any] = self.spread.layers
        self._compiled = self.layers
        if can_compile(compiles, self.device):
            self._compiled = self.spread.layers_as(compiled)
        self.norm: Any = self.spread.norm
        self.lm_head: Any = self.spread.lm_head
        self._between = BetweenLayers(self.spread)

    @property
    def device(self) -> torch.device:
        """Device of the weights; that of the embedding if the model is spread over devices."""
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
        *,
        mask: Tensor | None = None,
        pruner: LayerPruner | None = None,
        visual: VisualSpan | None = None,
        prompt_length: int | None = None,
        added: Additions | None = None,
    ) -> Tensor:
        """Run whole sequences of equal length through all layers, without a key-value cache.

        Args:
            hidden: (B, S, D) embeddings.
            positions: (..., B, S) int64 for the rotary embedding.
            mask: (B, 1, S, S) bool, `True` where attention is allowed. `None` is causal attention.
            pruner: Drops visual tokens between layers; for one sequence (B = 1).
            visual: Where the clip is; required with a pruner.
            prompt_length: Number of leading tokens that the pruner sees; the rest are generated
                tokens. `None` for all.
            added: Rows added to the states after the first layers; for one sequence.

        Returns:
            (B, S', D) output of the last layer before the final normalisation; S' < S if tokens
            were dropped.

        Raises:
            ValueError: If the pruner's layers do not exist, it drops text tokens, or the attention
                is not causal without a mask.
        """
        if mask is None and hidden.shape[1] > 1 and self.config._attn_implementation == "eager":
            raise InputError(
                "eager attention is causal only with a mask; "
                "build the language model with attn_implementation='sdpa'"
            )
        pruned = []
        if pruner is not None:
            assert visual is not None
            assert mask is None
            assert len(hidden) == 1
            length = hidden.shape[1] if prompt_length is None else prompt_length
            pruned.append(self.pruned_rows(pruner, visual, 0, length))
        return self._through(hidden, positions, pruned, mask=mask, added=added)

    def run_packed(
        self,
        hidden: Tensor,
        positions: Tensor,
        attend: Attend,
        *,
        compiles: bool = False,
        pruned: Sequence[PrunedRows] = (),
        shifted: Mapping[int, Tensor] = _NO_SHIFTS,
        added: Additions | None = None,
    ) -> Tensor:
        """Run the rows of many sequences through all layers; `attend` separates sequences.

        The layers must attend through it (`use_packed_attention`).

        Args:
            hidden: (N, D) embeddings of all rows.
            positions: (..., N) int64.
            attend: Receives queries, keys and values of every layer.
            compiles: Whether compiled layers are used, if there are any.
            pruned: Sequences with a pruner, in the order of their rows. Their `start` and `length`
                are updated when tokens are dropped.
            shifted: Layer -> (..., N) positions used from that layer on.
            added: Rows added to the states after the first layers.

        Returns:
            (N', D) output of the last layer before the final normalisation.
        """
        return self._through(
            hidden[None],
            positions[..., None, :],
            pruned,
            shifted=shifted,
            attend=attend,
            added=added,
            compiles=compiles,
        )[0]

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

    def _through(
        self,
        hidden: Tensor,
        positions: Tensor,
        pruned: Sequence[PrunedRows],
        *,
        mask: Tensor | None = None,
        shifted: Mapping[int, Tensor] = _NO_SHIFTS,
        attend: Attend | None = None,
        added: Additions | None = None,
        compiles: bool = False,
    ) -> Tensor:
        """Run all layers, with pruning between them."""
        options = {} if attend is None else {"work": attend}
        self.spread.begin()
        layer_input, rotary = hidden, self._rotary(hidden, positions)
        layers = self._compiled if compiles else self.layers
        for index, layer in enumerate(layers):
            if index in shifted:
                rotary = self._rotary(hidden, shifted[index][..., None, :])
            if any(index in prompt.at for prompt in pruned):
                layer_input, positions, rotary = self.spread.together(
                    hidden, layer_input, positions, rotary
                )
                hidden, positions = self._between.prune(
                    index, hidden, positions, layer_input, rotary, pruned, added
                )
                if attend is None:  # generated tokens continue after the shortened prompt
                    positions = go_on(positions, pruned[0].length)
                rotary = self._rotary(hidden, positions)
            layer_input = hidden
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, **options)
            if added is not None:
                hidden = added.after(index, hidden)
        return hidden if self.spread.is_one else hidden.to(self.device)

    def _rotary(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine for positions, in the dtype of the hidden states."""
        if not self.spread.is_one:
            hidden, positions = hidden.new_empty(0, device=self.device), positions.to(self.device)
        return self.rotary_emb(hidden, positions)  # type: ignore[no-any-return]
