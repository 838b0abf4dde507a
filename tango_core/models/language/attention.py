"""Attention for pruners, and attention of packed sequences.

The fused kernel inside a layer returns no probabilities, so the probabilities that rank tokens are
recomputed here from the layer's input and projections. The result is correct only if this code
repeats everything that the layer's class does to queries, keys and logits. So the supported classes
are listed, and tests compare each with its own eager attention. Any other class is rejected.

A layer of transformers processes each token independently except in its attention. So the tokens
of many sequences are concatenated without padding, and only the attention separates them. The
function that this module registers in transformers' `AttentionInterface` passes queries, keys and
values to the `Attend` function of the current pass; without one it calls transformers' own fused
kernel.

With grouped queries, key heads are never repeated per query head. A whole sequence is passed to the
kernel with `enable_gqa` and no mask, which CUDA's fused kernels support. For rows that continue a
prefix, the queries that share a key head become additional rows of that head.

Layers with linear attention (gated delta net) have a recurrent state instead of keys and values, so
their rows depend on all rows before them, also by the convolution in front. Their mixer is called
sequence by sequence (`Recur`), and pruners get no attention or keys from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tango_core.errors import InputError
from tango_core.models.kernels import attend

# To add one: read its `forward`, repeat here what is new in it, and add it to the tests.
KNOWN_CLASSES = frozenset(
    {
        "transformers.models.llama.modeling_llama.LlamaAttention",
        "transformers.models.mistral.modeling_mistral.MistralAttention",
        "transformers.models.qwen2.modeling_qwen2.Qwen2Attention",
        "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl.Qwen2_5_VLAttention",
        "transformers.models.qwen3.modeling_qwen3.Qwen3Attention",
        "transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5Attention",
        "transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet",
        "transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLTextAttention",
    }
)


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """Attention probabilities and keys of one layer for one sequence.

    Computed on the layer's device; results are moved to the device of the states.

    Attributes:
        layer: The layer, or `None` in front of the first one.
        states: (S, D) input of the layer.
        rotary: Cosine and sine, (S, head_dim) each.
    """

    layer: Any
    states: Tensor
    rotary: tuple[Tensor, Tensor]

    def probabilities(self, rows: Tensor) -> Tensor:
        """Softmax probabilities of the queries at the given positions.

        Args:
            rows: (n,) int64 positions in the sequence.

        Returns:
            (heads, n, S) float32, causally masked.

        Raises:
            ValueError: If there is no layer.
        """
        attention = self._attention()
        normed = self._normed()
        rows = rows.to(normed.device)
        queries = self._heads("q", normed[rows], rows).float()
        keys = self._heads("k", normed).float()
        keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)
        logits = queries @ keys.mT * attention.scaling
        hidden = rows[:, None] < torch.arange(len(normed), device=rows.device)
        probabilities: Tensor = logits.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
        return probabilities.to(self.states.device)

    def keys(self) -> Tensor:
        """(S, kv_heads * head_dim) keys after the rotary embedding; raises as `probabilities`."""
        self._attention()
        keys = self._heads("k", self._normed())
        return keys.transpose(0, 1).flatten(start_dim=1).to(self.states.device)

    def _normed(self) -> Tensor:
        """(S, D) input of the layer after its input norm."""
        norm = self.layer.input_layernorm
        return norm(self.states.to(norm.weight.device))  # type: ignore[no-any-return]

    def _attention(self) -> Any:
        """The layer's attention module; raises if there is none."""
        if self.layer is None or is_linear(self.layer):
            raise InputError(
                "a method inside the language model reads no layer 0 and no linear attention"
            )
        return self.layer.self_attn

    def _heads(self, kind: str, normed: Tensor, rows: Tensor | None = None) -> Tensor:
        """Queries ("q") or keys ("k") of (n, D) states, rotated: (heads, n, head_dim)."""
        attention = self.layer.self_attn
        projected = getattr(attention, f"{kind}_proj")(normed)
        # In gated attention the second half of every query head is its gate.
        gated = attention.q_proj.out_features == 2 * attention.o_proj.in_features
        width = attention.head_dim * (2 if kind == "q" and gated else 1)
        heads = projected.view(len(projected), -1, width)[..., : attention.head_dim]
        if (norm := getattr(attention, f"{kind}_norm", None)) is not None:
            heads = norm(heads)
        heads = heads.transpose(0, 1)
        rotary = (part.to(normed.device) for part in self.rotary)
        cosine, sine = rotary if rows is None else (part[rows] for part in rotary)
        turned, rest = heads[..., : cosine.shape[-1]], heads[..., cosine.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cosine + torch.cat([-second, first], dim=-1) * sine
        return torch.cat([turned, rest], dim=-1)


def is_linear(layer: Any) -> bool:
    """Whether a layer has linear attention."""
    return getattr(layer, "linear_attn", None) is not None


def raise_if_unsupported(model: Any) -> None:
    """Reject a text model with layers that use a feature which `LayerLoop` does not support."""
    for index, layer in enumerate(model.layers):
        attention: Any = (
            layer.linear_attn if is_linear(layer) else getattr(layer, "self_attn", None)
        )
        cls = type(attention)
        if f"{cls.__module__}.{cls.__qualname__}" not in KNOWN_CLASSES:
            known = ", ".join(sorted(name.rpartition(".")[2] for name in KNOWN_CLASSES))
            raise InputError(
                f"attention of class {cls.__name__} is not supported; known are {known}"
            )
        if is_linear(layer):
            continue
        of_all = getattr(attention.config, "sliding_window", None)  # as Mistral has it
        if (window := getattr(attention, "sliding_window", of_all)) is not None:
            raise InputError(
                f"layer {index} has a sliding window of {window} tokens, which is not supported"
            )


IMPLEMENTATION = "tango_packed"
"""Name under which this attention is registered in transformers."""


Recur = Callable[[int, Callable[..., Tensor], Tensor], Tensor]
"""Linear attention of one layer of a packed pass.

Arguments: index of the layer; its own mixer, called with (1, n, D) rows of one sequence and
`cache_params`; (1, N, D) normalised rows of all sequences. Result: (1, N, D).
"""


Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""Attention of one layer of a packed pass.

Arguments: index of the layer; (heads, N, head_dim) rotated queries; (kv_heads, N, head_dim) rotated
keys, and values; factor of the logits. Result: (N, heads, head_dim).
"""


def attend_whole(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Causal attention of a whole sequence: (n, heads, head_dim)."""
    mixed = attend(
        queries[None],
        keys[None],
        values[None],
        is_causal=queries.shape[1] > 1,
        scale=scaling,
        enable_gqa=len(queries) != len(keys),
    )
    return mixed[0].transpose(0, 1)


def attend_onwards(
    queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None
) -> Tensor:
    """Causal attention of the last n rows of a sequence of S tokens.

    Args:
        queries: (heads, n, head_dim).
        keys: (kv_heads, S, head_dim).
        values: (kv_heads, S, head_dim).
        scaling: Factor of the logits.
        mask: Result of `onwards_mask` for these rows.

    Returns:
        (n, heads, head_dim).
    """
    num_heads, num_rows, width = queries.shape
    folded = queries.reshape(len(keys), -1, width)
    mixed = attend(folded[None], keys[None], values[None], mask=mask, scale=scaling)
    return mixed.reshape(num_heads, num_rows, width).transpose(0, 1)


def onwards_mask(num_rows: int, num_keys: int, groups: int, device: torch.device) -> Tensor | None:
    """(groups * n, S) mask of the last n rows of a sequence of S; `None` if none is needed."""
    if num_rows == 1:
        return None
    mask = torch.ones(num_rows, num_keys, dtype=torch.bool, device=device)
    return mask.tril(num_keys - num_rows).repeat(groups, 1)


def _attention(
    module: Any, *parts: Any, scaling: float, work: Attend | None = None, **options: Any
) -> Any:
    """The attention function registered in transformers, for queries, keys, values and a mask."""
    if work is None:
        attend: Any = sdpa_attention_forward
        return attend(module, *parts, scaling=scaling, **options)
    query, key, value, _ = parts
    return work(module.layer_idx, query[0], key[0], value[0], scaling)[None], None


def pack_linear_attention(mixer: Any) -> None:
    """Let a layer's mixer with linear attention call the `Recur` function of the current pass.

    Without one, as in a plain call of the layer, all rows are one sequence from its beginning.
    """
    stock = mixer.forward

    def forward(hidden_states: Tensor, *, work: Recur | None = None, **options: Any) -> Any:
        if work is None:
            return stock(hidden_states, **options)
        return work(mixer.layer_idx, stock, hidden_states)

    mixer.forward = forward


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
