"""Number of tokens answered together, and the memory they need."""

from __future__ import annotations

# Questions that go on from one prefix at once: each has a copy of its keys and values, 0.36 GB for
# 6,273 tokens of a 7B model.
MAX_BATCH = 8
# Sequences at once, whatever their length.
MAX_SEQUENCES = 64

# Tokens that are answered together on a CPU: enough that a call costs little against its work.
# Small layers stay in the cache of the CPU with few tokens; large ones are read less often with
# many.
_SMALL_LAYER_BYTES = 8 * 2**20
_ON_CPU = {"small": 1024, "large": 4096}
_AT_MOST = 65_536


def on_cpu(layer_bytes: int) -> int:
    """Tokens that `answer.batch_tokens: auto` means on a CPU.

    Args:
        layer_bytes: Weights of one layer.
    """
    return _ON_CPU["small" if layer_bytes < _SMALL_LAYER_BYTES else "large"]


def on_gpu(free: int, token_bytes: int) -> int:
    """Tokens that `auto` means on a GPU: those that half of its free memory has room for.

    Args:
        free: Bytes that are free beside the weights; 0 for the fewest tokens.
        token_bytes: Keys and values of a token in all layers, and its `row_bytes`.
    """
    return max(_ON_CPU["large"], min(_AT_MOST, free // 2 // token_bytes))


def row_bytes(hidden_size: int, intermediate_size: int, itemsize: int) -> int:
    """Bytes of what the widest layer keeps of a token while it computes."""
    return (4 * hidden_size + 3 * intermediate_size) * itemsize


def held_tokens(budget: int, need: int, together: int, prompts: int) -> int:
    """Tokens whose keys and values are held at once, at most.

    Args:
        budget: `answer.batch_tokens`; 1 answers one part of a request after the other.
        need: Tokens of the longest prompt with its reply.
        together: Prompts of a part, which is never cut: questions that share a prefix.
        prompts: Of the whole job.
    """
    part = min(together, MAX_BATCH) * need
    return max(part, min(budget, min(MAX_SEQUENCES, prompts) * need))
