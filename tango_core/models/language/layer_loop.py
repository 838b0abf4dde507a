"""The language model as one explicit loop over stock layers: prefill, pruning, and decoding.

The layers are called, never changed: no hooks, no replaced methods. What a pruner wants to know
about a layer is computed a second time from that layer's own input and projections
(`attention.py`), so the fused attention kernel runs in every layer. What this loop does not hand to
the layers (sliding windows, soft-capped logits) is refused when it is made.

Positions belong to the caller. Any shape whose last two axes are (batch, sequence) works: (B, S)
for Qwen2, (3, B, S) for the multimodal rotary embedding of Qwen2.5-VL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tango_core.compressors.base import LayerPruner
from tango_core.errors import InputError
from tango_core.models.kernels import can_compile, compiled
from tango_core.models.language.attention import Work, raise_if_unsupported
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

logger = logging.getLogger(__name__)


class LayerLoop:
    """Runs sequences of embeddings through the layers of a language model.

    Args:
        text_model: A stock text model: `layers`, `norm`, `rotary_emb`, `embed_tokens`, `config`.
        lm_head: Output projection.
        compiles: Whether layers are compiled for the work that may be (`Work.compiles`).

    Raises:
        ValueError: If the layers do something that this loop does not.
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
        self.recorder = Recorder(self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are; those of the embedding, if they are on several devices."""
        return self.embed_tokens.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """In which precision the layers compute."""
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
        """Run whole sequences of equal length through all layers; nothing is kept for later.

        Args:
            hidden: (B, S, D) embeddings.
            positions: (..., B, S) int64 for the rotary embedding.
            mask: (B, 1, S, S) bool, `True` where attention is allowed. `None` is causal attention.
            pruner: Drops visual tokens between layers; for one sequence (B = 1).
            visual: Where the clip is; required with a pruner.
            prompt_length: Leading tokens that the pruner sees; the rest are tokens generated since.
                `None` for all.
            added: To the states after the first layers; for one sequence.

        Returns:
            (B, S', D) output of the last layer before the final normalisation; S' < S if something
            was dropped.

        Raises:
            ValueError: If the pruner's layers do not exist, or it drops text tokens, or the layers
                would not be causal without a mask.
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
        work: Work,
        *,
        pruned: Sequence[PrunedRows] = (),
        shifted: Mapping[int, Tensor] = _NO_SHIFTS,
        added: Additions | None = None,
    ) -> Tensor:
        """Run the rows of many sequences through all layers; `work` keeps them apart.

        The layers must attend through `work` (`use_packed_attention`).

        Args:
            hidden: (N, D) embeddings of all rows.
            positions: (..., N) int64.
            work: Is handed queries, keys and values of every layer.
            pruned: Sequences whose visual tokens are dropped on the way, in the order of their
                rows. Their `start` and `length` follow what is dropped.
            shifted: Layer -> (..., N) positions that hold from that layer on.
            added: To the states after the first layers.

        Returns:
            (N', D) output of the last layer before the final normalisation.
        """
        return self._through(
            hidden[None], positions[..., None, :], pruned, shifted=shifted, work=work, added=added
        )[0]

    def pruned_rows(
        self, pruner: LayerPruner, visual: VisualSpan, start: int, length: int
    ) -> PrunedRows:
        """A prompt that is to be pruned.

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
        work: Work | None = None,
        added: Additions | None = None,
    ) -> Tensor:
        """All layers, with pruning between them."""
        options = {} if work is None else {"work": work}
        self.spread.begin()
        layer_input, rotary = hidden, self._rotary(hidden, positions)
        layers = self._compiled if work is not None and work.compiles else self.layers
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
                if work is None:  # tokens generated since go on where the prompt now ends
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


class Recorder:
    """Records work of one device, one piece after another.

    All pieces are recorded on one stream: cuBLAS keeps 32 MiB of the device for every stream that
    it has worked on, for as long as the process lives.

    Args:
        device: Of the work. It need not be the current one, on which PyTorch would record.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """The work as a graph, not done yet; `None`, with a warning, if it cannot be recorded.

        Other threads may go on using the device meanwhile: what they do is no part of the graph and
        does not spoil it.

        Args:
            work: Has been done before, allocates nothing that outlives it, and nothing in it waits
                for the device.
        """
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            try:
                return self._recorded(work)
            except RuntimeError as error:
                reason = str(error).split("\n")[0]
            torch.cuda.set_stream(stream)  # a recording that broke off stays on its own
        logger.warning("decoding goes on without a CUDA graph: %s", reason)
        return None

    def _recorded(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The graph."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph
