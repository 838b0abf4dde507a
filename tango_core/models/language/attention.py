"""The attention of one layer, computed a second time for pruners that rank tokens by it.

The fused kernel inside a layer returns no probabilities, so they are computed here from the input
of the layer and its own projections. That is right only if everything is repeated that the class of
the layer does to queries, keys and logits. So the classes are listed; the tests compare each of
them with the probabilities of its own eager attention. Any other class is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# To add one: read its `forward`, repeat here what is new in it, and add it to the tests.
KNOWN_CLASSES = frozenset(
    {
        "transformers.models.gemma2.modeling_gemma2.Gemma2Attention",
        "transformers.models.llama.modeling_llama.LlamaAttention",
        "transformers.models.mistral.modeling_mistral.MistralAttention",
        "transformers.models.qwen2.modeling_qwen2.Qwen2Attention",
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VLAttention",
        "transformers.models.qwen3.modeling_qwen3.Qwen3Attention",
        "transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLTextAttention",
    }
)


def raise_if_unknown(attention: Any) -> None:
    """Refuse an attention module whose computation this project does not know.

    Raises:
        ValueError: If its class is not listed, or it is not causal.
    """
    cls = type(attention)
    if f"{cls.__module__}.{cls.__qualname__}" not in KNOWN_CLASSES:
        known = ", ".join(sorted(name.rpartition(".")[2] for name in KNOWN_CLASSES))
        raise ValueError(
            f"the language model has attention of class {cls.__name__}, which is not supported; "
            f"use a checkpoint with one of: {known}"
        )
    if not attention.is_causal:
        raise ValueError(
            f"the {cls.__name__} of the language model is not causal, which is not supported; "
            "set use_bidirectional_attention to false in the checkpoint's config.json"
        )


def window_of(attention: Any) -> int | None:
    """Tokens that a query of this layer sees, itself included; `None` for all before it."""
    if hasattr(attention, "sliding_window"):
        return attention.sliding_window  # type: ignore[no-any-return]
    return getattr(attention.config, "sliding_window", None)  # Mistral has it for all layers


def soft_cap_of(attention: Any) -> float | None:
    """Bound c of the logits, which become c * tanh(logits / c); `None` for none."""
    return getattr(attention, "attn_logit_softcapping", None)


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """What one layer attends to, for one sequence.

    It is computed where the layer is, and given where the states are.

    Attributes:
        layer: The layer, or `None` in front of the first one.
        states: (S, D) its input.
        rotary: Cosine and sine, (S, head_dim) each.
    """

    layer: Any
    states: Tensor
    rotary: tuple[Tensor, Tensor]

    def probabilities(self, rows: Tensor) -> Tensor:
        """Softmax probabilities of the queries at some positions.

        Args:
            rows: (n,) int64 positions in the sequence.

        Returns:
            (heads, n, S) float32, causally masked.

        Raises:
            ValueError: If there is no layer, or its attention class is unknown.
        """
        attention = self._known_attention()
        rows = rows.to(self._device)
        normed = self._normed()
        queries = self._heads("q", normed[rows], rows).float()
        keys = self._heads("k", normed).float()
        keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)
        logits = queries @ keys.mT * attention.scaling
        if (cap := soft_cap_of(attention)) is not None:
            logits = torch.tanh(logits / cap) * cap
        distance = rows[:, None] - torch.arange(len(normed), device=rows.device)
        hidden = distance < 0
        if (window := window_of(attention)) is not None:
            hidden |= distance >= window
        probabilities: Tensor = logits.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
        return probabilities.to(self.states.device)

    def keys(self) -> Tensor:
        """(S, kv_heads * head_dim) keys after the rotary embedding; raises as `probabilities`."""
        self._known_attention()
        keys = self._heads("k", self._normed())
        return keys.transpose(0, 1).flatten(start_dim=1).to(self.states.device)

    @property
    def _device(self) -> torch.device:
        """Where the layer is."""
        return self.layer.input_layernorm.weight.device  # type: ignore[no-any-return]

    def _normed(self) -> Tensor:
        """(S, D) input of the layer, normalised."""
        return self.layer.input_layernorm(  # type: ignore[no-any-return]
            self.states.to(self._device)
        )

    def _known_attention(self) -> Any:
        """The attention module of the layer."""
        if self.layer is None:
            raise ValueError(
                "a pruner at layer 0 has no attention or keys to rank by; set layer to 1 or larger"
            )
        raise_if_unknown(self.layer.self_attn)
        return self.layer.self_attn

    def _heads(self, kind: str, normed: Tensor, rows: Tensor | None = None) -> Tensor:
        """Queries ("q") or keys ("k") of (n, D) states, rotated: (heads, n, head_dim)."""
        attention = self.layer.self_attn
        projected = getattr(attention, f"{kind}_proj")(normed)
        heads = projected.view(len(projected), -1, attention.head_dim)
        if (norm := getattr(attention, f"{kind}_norm", None)) is not None:
            heads = norm(heads)
        heads = heads.transpose(0, 1)
        rotary = (part.to(normed.device) for part in self.rotary)
        cosine, sine = rotary if rows is None else (part[rows] for part in rotary)
        first, second = heads.chunk(2, dim=-1)
        rotated: Tensor = heads * cosine + torch.cat([-second, first], dim=-1) * sine
        return rotated


def raise_if_unsupported(model: Any) -> None:
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
