"""The language model as one explicit loop over stock layers, with pruning between them.

The layers are called, never changed but for their attention function (`attention.py`). Attention
probabilities for a pruner are recomputed from the layer's input and projections, so the fused
attention kernel runs in every layer. Models with unsupported attention (other classes, sliding
windows) are rejected by the constructor.

The caller computes the positions. Any shape whose last axis is the sequence works: (N,) for Qwen2,
(3, N) for the multimodal rotary embedding of Qwen2.5-VL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.compressors.base import LayerPruner
from tango_core.models.kernels import can_compile, compile_blocks
from tango_core.models.language.attention import (
    IMPLEMENTATION,
    Attend,
    Recur,
    is_linear,
    pack_linear_attention,
    raise_if_unsupported,
)
from tango_core.models.language.pruning import Additions, PrunedRows, VisualSpan, prune_between
from tango_core.models.onednn import pack_linears
from tango_core.models.placement import follow_weights, moved_to
from tango_core.ops.transfer import upload

_NO_SHIFTS: Mapping[int, Tensor] = MappingProxyType({})


class LayerLoop:
    """Runs rows of embeddings through the layers of a language model.

    The layers may be on several devices; embedding, positions and results are on the first.

    Args:
        text_model: A stock text model: `layers`, `norm`, `rotary_emb`, `embed_tokens`, `config`.
        lm_head: Output projection.
        compiles: Whether the layers are compiled.

    Attributes:
        devices: Devices of the weights; that of the embedding first.

    Raises:
        ValueError: If the layers use a feature that this loop does not support.
    """

    def __init__(self, text_model: nn.Module, lm_head: nn.Module, compiles: bool = False) -> None:
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
        if can_compile(compiles, self.device):
            compile_blocks(self.layers, dynamic=True)
        elif self.dtype == torch.float32:  # others are mapped from their file and often shared
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
        shifted: Mapping[int, Tensor] = _NO_SHIFTS,
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
            if index in shifted:
                rotary = self.rotary(hidden, shifted[index][..., None, :])
            if any(index in prompt.at for prompt in pruned):
                layer_input, positions, rotary = moved_to(
                    (layer_input, positions, rotary), hidden.device
                )
                hidden, positions = prune_between(
                    self.layers,
                    self.norm,
                    index,
                    hidden,
                    positions,
                    layer_input,
                    rotary,
                    pruned,
                    added,
                )
                rotary = self.rotary(hidden, positions)
            layer_input = hidden
            work = recur if is_linear(layer) else attend
            hidden = layer(hidden, attention_mask=None, position_embeddings=rotary, work=work)
            if added is not None:
                hidden = added.after(index, hidden)
        return hidden[0].to(self.device)

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
