"""Floating-point operations of a prefill and of a vision encoder.

`prefill_flops` counts the matrix products of a modern language model. The formula of the pruning
literature (FastV and its successors) gives numbers about 2.4 times smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from tango_core.models.base import LLMShape

# Tokens that the gated delta rule takes together.
_CHUNK = 64


def prefill_flops(shape: LLMShape, lengths: int | Sequence[int], *, causal: bool = True) -> float:
    """Floating-point operations of one prefill, two per multiply-accumulate.

    Counted per layer with S tokens: the projections to queries, keys and values (grouped-query
    attention: keys and values have `num_kv_heads` heads) and back, the three matrices of the gated
    MLP, the products Q K^T and A V; and once the output projection of the last position, from which
    the first new token is read. In a layer with linear attention, instead of the two products: the
    convolution, and the gated delta rule in chunks of 64 tokens as transformers and
    flash-linear-attention compute it, without its triangular systems. Norms, rotary embedding,
    softmax and activations are below 1 % and not counted.

    Args:
        shape: Numbers of the language model.
        lengths: Tokens of the sequence, or one number per layer when tokens are dropped on the way.
        causal: Count the S (S + 1) / 2 query-key pairs that a causal kernel computes; `False`
            counts S^2, as kernels without causal skipping do and as `torch.utils.flop_counter`
            reports; likewise within a chunk, the last one filled up.

    Raises:
        ValueError: If there is not one length per layer.
    """
    query_width, linear = shape.num_heads * shape.head_dim, shape.linear
    total = shape.hidden_size * shape.vocab_size
    per_layer = [lengths] * shape.num_layers if isinstance(lengths, int) else lengths
    for layer, length in zip(range(shape.num_layers), per_layer, strict=True):
        total += length * shape.weights_of(layer)
        if linear is None or layer not in linear.layers:
            total += 2 * _pairs(length, causal) * query_width
            continue
        chunks, rest = divmod(length, _CHUNK)
        if rest and not causal:
            chunks, rest = chunks + 1, 0
        pairs = chunks * _pairs(_CHUNK, causal) + _pairs(rest, causal)
        keys, values = linear.key_dim, linear.value_dim
        states = 3 * (chunks * _CHUNK + rest) * keys * values
        total += linear.num_value_heads * (pairs * (2 * keys + values) + states)
        total += length * linear.conv_width * linear.mixed_width
    return 2.0 * total


def tower_flops(
    blocks: Sequence[nn.Module],
    rows: Sequence[int],
    positions: int,
    reach: Sequence[int],
    width: int,
) -> float:
    """Floating-point operations of the blocks of a vision tower, counted as in `prefill_flops`.

    Args:
        blocks: Blocks that are run.
        rows: For every block the rows (frames, or pairs of frames) that enter it: fewer behind a
            block where frames are merged.
        positions: Positions of a row.
        reach: For every block the positions that a position attends to.
        width: Width of the states.
    """
    return sum(
        number * (positions_flops(block, positions) + 4.0 * positions * others * width)
        for block, number, others in zip(blocks, rows, reach, strict=True)
    )


def positions_flops(module: nn.Module, positions: int) -> float:
    """Floating-point operations of all weight matrices of a module for some positions."""
    # Weights in oneDNN's layout (`tango_core.models.kernels`) are buffers.
    packed = [own for own in module.buffers() if own.is_mkldnn]
    weights = [own for own in (*module.parameters(), *packed) if own.ndim > 1]
    return 2.0 * positions * sum(own.numel() for own in weights)


def _pairs(length: int, causal: bool) -> int:
    """Query-key pairs of a sequence."""
    return length * (length + 1) // 2 if causal else length * length


def lengths_per_layer(
    prompt_tokens: int, visual_tokens: int, layer_shares: Sequence[float]
) -> tuple[int, ...]:
    """Tokens that enter every layer when visual tokens are dropped inside the language model.

    Args:
        prompt_tokens: Tokens of the whole prompt, visual ones included.
        visual_tokens: Visual tokens of the prompt, at most `prompt_tokens`.
        layer_shares: For every layer the share of the visual tokens that enters it, in (0, 1].
    """
    text_tokens = prompt_tokens - visual_tokens
    return tuple(text_tokens + round(visual_tokens * share) for share in layer_shares)
