"""Attention of many sequences in one row of tokens, beside everything else of a stock layer.

A stock layer works on each token by itself except in its attention. So the tokens of many sequences
go through it as one row without padding, and only the attention keeps them apart. transformers has
a table of attention functions for that (`AttentionInterface`); the one of this module hands
queries, keys and values to the `Work` at hand, and is the stock fused kernel where there is none.

Grouped queries are never expanded to one key head per query head: a whole sequence goes to the
kernel with `enable_gqa` and no mask, which the fused kernels of CUDA take, and rows that go on from
a prefix are folded: the queries that share a key head become more rows of that head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tango_core.models.fused_attention import attend

IMPLEMENTATION = "tango_packed"
"""Name of this attention in the table of transformers."""


class Work(ABC):
    """What one pass through the layers does: who attends to what, and where keys are kept.

    Attributes:
        compiles: Whether the pass may go through compiled layers.
    """

    compiles = False

    @abstractmethod
    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """Attention of one layer.

        Args:
            layer: Its index.
            queries: (heads, N, head_dim) of all rows, rotated.
            keys: (kv_heads, N, head_dim), rotated.
            values: (kv_heads, N, head_dim).
            scaling: Factor of the logits.

        Returns:
            (N, heads, head_dim).
        """


def use_packed_attention(text_model: Any) -> None:
    """Let a stock text model attend through the work it is given; without one it is as before."""
    text_model.set_attn_implementation(IMPLEMENTATION)


def attend_whole(queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    """Causal attention of a sequence from its beginning: (n, heads, head_dim)."""
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
    """Causal attention of the last n rows of a sequence of S.

    Args:
        queries: (heads, n, head_dim).
        keys: (kv_heads, S, head_dim).
        values: As keys.
        scaling: Factor of the logits.
        mask: What `onwards_mask` gave for these rows.

    Returns:
        (n, heads, head_dim).
    """
    num_heads, num_rows, width = queries.shape
    folded = queries.reshape(len(keys), -1, width)
    mixed = attend(folded[None], keys[None], values[None], mask=mask, scale=scaling)
    return mixed.reshape(num_heads, num_rows, width).transpose(0, 1)


def onwards_mask(num_rows: int, num_keys: int, groups: int, device: torch.device) -> Tensor | None:
    """(groups * n, S) mask of n rows that end a sequence of S; `None` where none is needed."""
    if num_rows == 1:
        return None
    mask = torch.ones(num_rows, num_keys, dtype=torch.bool, device=device)
    return mask.tril(num_keys - num_rows).repeat(groups, 1)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    work: Work | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The entry of the table of transformers."""
    if work is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    layer: Any = module.layer_idx
    return work.attend(layer, query[0], key[0], value[0], scaling)[None], None


# In a compiled layer, too, a work is called as it is: it has lists to go through and to change.
AttentionInterface.register(IMPLEMENTATION, torch.compiler.disable(_attention))  # type: ignore[no-untyped-call]
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
