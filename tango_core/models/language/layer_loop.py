"""The language model as one explicit loop over stock layers: prefill, pruning, and decoding.

The layers are called, never changed: no hooks, no replaced methods. What a pruner wants to know
about a layer is computed a second time from that layer's own input and projections
(`attention.py`), so the fused attention kernel runs in every layer. What this loop does not hand to
the layers (sliding windows, soft-capped logits) is refused when it is made.

Positions belong to the caller. Any shape whose last two axes are (batch, sequence) works: (B, S)
for Qwen2, (3, B, S) for the multimodal rotary embedding of Qwen2.5-VL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tango_core.compressors.base import LayerContext, LayerPruner, Pruned
from tango_core.models.language.attention import (
    LayerAttention,
    raise_if_unknown,
    soft_cap_of,
    window_of,
)
from tango_core.ops.precision import full_precision


@dataclass(frozen=True, eq=False)
class VisualSpan:
    """Where the clip is in a sequence.

    Attributes:
        start: Position of its first token in the sequence.
        indices: (V,) int64 flat grid position of every visual token, -1 for newline tokens.
        grid: (T, H, W) of the clip before any compression.
    """

    start: int
    indices: Tensor
    grid: tuple[int, int, int]


@dataclass(eq=False)
class _PrunedPrompt:
    """What is left of a prompt while it runs through the layers.

    Attributes:
        length: Tokens of the prompt still in the sequence.
        visual: (n,) int64, of every visual token still there its index among the original ones.
        scratch: Memory of the pruner for this prompt.
    """

    length: int
    visual: Tensor
    scratch: dict[str, Any] = field(default_factory=dict)


class LayerLoop:
    """Runs sequences of embeddings through the layers of a language model.

    Args:
        text_model: A stock text model: `layers`, `norm`, `rotary_emb`, `embed_tokens`, `config`.
        lm_head: Output projection.

    Raises:
        ValueError: If the layers do something that this loop does not.
    """

    def __init__(self, text_model: nn.Module, lm_head: nn.Module) -> None:
        model: Any = text_model
        _raise_if_unsupported(model)
        self.config: Any = model.config
        self.layers: list[Any] = list(model.layers)
        self.norm: Any = model.norm
        self.rotary_emb: Any = model.rotary_emb
        self.embed_tokens: Any = model.embed_tokens
        self.lm_head = lm_head

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """In which precision the layers compute."""
        return self.embed_tokens.weight.dtype  # type: ignore[no-any-return]

    def embed(self, ids: Iterable[int]) -> Tensor:
        """(n, D) embeddings of token ids."""
        return self.embed_tokens(  # type: ignore[no-any-return]
            torch.tensor(list(ids), dtype=torch.long, device=self.device)
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and output projection of hidden states: (..., D) -> (..., vocabulary)."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]

    def run(
        self,
        hidden: Tensor,
        positions: Tensor,
        *,
        cache: DynamicCache | None = None,
        mask: Tensor | None = None,
        pruner: LayerPruner | None = None,
        visual: VisualSpan | None = None,
        prompt_length: int | None = None,
        renumbered: bool = False,
    ) -> Tensor:
        """Run a sequence, or its continuation, through all layers.

        Args:
            hidden: (B, S, D) embeddings.
            positions: (..., B, S) int64 for the rotary embedding.
            cache: Keys and values so far; this call adds to them. Layers behind a pruner hold
                fewer.
            mask: (B, 1, S, cached + S) bool, `True` where attention is allowed. `None` is causal
                attention, and only correct for a whole sequence or for a single new token.
            pruner: Drops visual tokens between layers; for one sequence (B = 1) from its beginning.
            visual: Where the clip is; required with a pruner.
            prompt_length: Leading tokens that the pruner sees; the rest are tokens generated since.
                `None` for all.
            renumbered: Continue a cache filled under a pruner that renumbers: every layer goes on
                counting from the tokens it holds. `positions` are those without pruning.

        Returns:
            (B, S', D) output of the last layer before the final normalisation; S' < S if something
            was dropped.

        Raises:
            ValueError: If the pruner's layers do not exist, or it drops text tokens, or the layers
                would not be causal without a mask.
        """
        if mask is None and hidden.shape[1] > 1 and self.config._attn_implementation == "eager":
            raise ValueError(
                "eager attention is causal only with a mask; "
                "build the language model with attn_implementation='sdpa'"
            )
        prunes_at: tuple[int, ...] = ()
        if pruner is not None:
            assert visual is not None
            assert mask is None
            assert len(hidden) == 1
            prunes_at = pruner.layers(len(self.layers))
            prompt = _PrunedPrompt(
                length=hidden.shape[1] if prompt_length is None else prompt_length,
                visual=torch.arange(len(visual.indices), device=hidden.device),
            )
        layer_input, rotary = hidden, self.rotary_emb(hidden, positions)
        lengths = [0] * len(self.layers)
        if renumbered and cache is not None and _counts(positions):
            lengths = [cache.get_seq_length(index) for index in range(len(self.layers))]
        for index, layer in enumerate(self.layers):
            if index > 0 and lengths[index] != lengths[index - 1]:
                rotary = self.rotary_emb(hidden, positions - (lengths[0] - lengths[index]))
            if pruner is not None and visual is not None and index in prunes_at:
                hidden, positions = self._prune(
                    pruner, index, hidden, positions, layer_input, rotary, visual, prompt
                )
                rotary = self.rotary_emb(hidden, positions)
            layer_input = hidden
            hidden = layer(
                hidden, attention_mask=mask, past_key_values=cache, position_embeddings=rotary
            )
        return hidden

    def _prune(
        self,
        pruner: LayerPruner,
        index: int,
        hidden: Tensor,
        positions: Tensor,
        previous_input: Tensor,
        rotary: tuple[Tensor, Tensor],
        visual: VisualSpan,
        prompt: _PrunedPrompt,
    ) -> tuple[Tensor, Tensor]:
        """Let the pruner shorten the prompt; tokens keep their positions unless it renumbers."""
        cos_sin = (rotary[0][0, : prompt.length], rotary[1][0, : prompt.length])
        before = LayerAttention(
            self.layers[index - 1] if index > 0 else None,
            previous_input[0, : prompt.length],
            cos_sin,
        )
        ahead = LayerAttention(self.layers[index], hidden[0, : prompt.length], cos_sin)
        stop = visual.start + len(prompt.visual)
        context = LayerContext(
            layer=index,
            num_layers=len(self.layers),
            hidden=hidden[0, : prompt.length],
            visual=slice(visual.start, stop),
            num_visual=len(visual.indices),
            previous_visual=prompt.visual,
            grid=visual.grid,
            visual_indices=visual.indices,
            attention=before.probabilities,
            keys=before.keys,
            norm=self.norm,
            scratch=prompt.scratch,
            attention_ahead=ahead.probabilities,
        )
        with full_precision():
            pruned = pruner.prune(context)
        num_kept = _num_visual_kept(pruner, pruned, context)
        kept = pruned.keep[visual.start : visual.start + num_kept] - visual.start
        prompt.visual = prompt.visual[kept]
        rest = slice(prompt.length, None)
        prompt.length = len(pruned.keep)
        shortened = torch.cat([pruned.hidden, hidden[0, rest]])[None]
        if pruner.renumbers and _counts(positions):
            count = torch.arange(shortened.shape[1], device=positions.device)
            return shortened, positions[..., :1] + count
        return (
            shortened,
            torch.cat([positions[..., pruned.keep], positions[..., rest]], dim=-1),
        )


def _raise_if_unsupported(model: Any) -> None:
    """Refuse a text model whose layers do something that the loop does not."""
    for index, layer in enumerate(model.layers):
        attention = getattr(layer, "self_attn", None)
        raise_if_unknown(attention)
        if (window := window_of(attention)) is not None:
            raise ValueError(
                f"layer {index} of the language model attends within a sliding window of {window} "
                "tokens, which is not supported; set use_sliding_window to false (or "
                "sliding_window to null) in the checkpoint's config.json"
            )
        if (cap := soft_cap_of(attention)) is not None:
            raise ValueError(
                f"layer {index} of the language model soft-caps its attention logits at {cap}, "
                "which the fused kernel does not; use a checkpoint without attn_logit_softcapping"
            )
    if (cap := getattr(model.config, "final_logit_softcapping", None)) is not None:
        raise ValueError(
            f"the language model soft-caps its output logits at {cap}, which is not supported; "
            "use a checkpoint without final_logit_softcapping"
        )


def _counts(positions: Tensor) -> bool:
    """Whether positions are (B, S) counts, as opposed to (3, B, S) coordinates."""
    return positions.ndim == 2


def _num_visual_kept(pruner: LayerPruner, pruned: Pruned, context: LayerContext) -> int:
    """Count the visual tokens that stay, after checking that all text stays, in order."""
    length, dim = context.hidden.shape
    start, stop = context.visual.start, context.visual.stop
    keep = pruned.keep
    num_kept: int = len(keep) - (length - (stop - start))
    ok = (
        num_kept >= 0
        and tuple(pruned.hidden.shape) == (len(keep), dim)
        and bool(
            (keep[1:] > keep[:-1]).all()
            & (keep[:start] == torch.arange(start, device=keep.device)).all()
            & (keep[start + num_kept :] == torch.arange(stop, length, device=keep.device)).all()
        )
    )
    if not ok:
        raise ValueError(
            f"{type(pruner).__name__} at layer {context.layer} must return ascending positions "
            f"that hold all text tokens, and one hidden state each; got {len(keep)} of {length}"
        )
    return num_kept
