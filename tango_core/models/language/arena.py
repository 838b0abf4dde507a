"""Keys and values of several sequences in place, and how many tokens are answered together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class KVArena:
    """Room for the keys and values of some sequences in every layer; nothing grows or is copied.

    A sequence has a slot. Layers behind a pruner hold fewer of its tokens.

    Args:
        layers: Stock layers.
        slots: Sequences.
        capacity: Tokens of a sequence, new ones included.
        dtype: Of keys and values.
        cleared: Every sequence finds zeros in its slot: a kernel with a mask reads what is masked,
            too, and no NaN may be left there. Without it, memory is taken only for what is
            written. `None`: except on a CPU, where nothing else is read.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        slots: int,
        capacity: int,
        dtype: torch.dtype,
        cleared: bool | None = None,
    ) -> None:
        on_cpu = layers[0].self_attn.k_proj.weight.device.type == "cpu"
        self._cleared = not on_cpu if cleared is None else cleared
        self.slots = slots
        self.capacity = capacity
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for layer in layers:
            attention = layer.self_attn
            weight = attention.k_proj.weight
            shape = (slots, len(weight) // attention.head_dim, capacity, attention.head_dim)
            make = torch.zeros if self._cleared else torch.empty
            self.keys.append(make(shape, dtype=dtype, device=weight.device))
            self.values.append(make(shape, dtype=dtype, device=weight.device))
        self.lengths = [[0] * slots for _ in layers]
        self._free = list(range(slots))[::-1]
        self._used: set[int] = set()

    @property
    def tokens(self) -> int:
        """Room for so many tokens in all slots."""
        return self.slots * self.capacity

    @property
    def num_free(self) -> int:
        """Slots without a sequence."""
        return len(self._free)

    def take(self) -> int:
        """A slot for a new sequence."""
        slot = self._free.pop()
        for lengths in self.lengths:
            lengths[slot] = 0
        if self._cleared and slot in self._used:
            self._clear(slot)
        self._used.add(slot)
        return slot

    def _clear(self, slot: int) -> None:
        """Zeros in all layers, those of a device in one launch."""
        of_device: dict[torch.device, list[Tensor]] = {}
        for tensor in (*self.keys, *self.values):
            of_device.setdefault(tensor.device, []).append(tensor[slot])
        for tensors in of_device.values():
            torch._foreach_zero_(tensors)

    def give_back(self, slot: int) -> None:
        """The sequence has ended."""
        assert slot not in self._free
        self._free.append(slot)

    def write(self, layer: int, slot: int, keys: Tensor, values: Tensor) -> None:
        """Append (kv_heads, n, head_dim) keys and values to a sequence."""
        at = self.lengths[layer][slot]
        self.lengths[layer][slot] = end = at + keys.shape[1]
        self.keys[layer][slot, :, at:end] = keys
        self.values[layer][slot, :, at:end] = values

    def copy(self, layer: int, source: int, slot: int, count: int) -> None:
        """Begin a sequence with the first tokens of another one; or forget what came after them."""
        if source != slot:
            self.keys[layer][slot, :, :count] = self.keys[layer][source, :, :count]
            self.values[layer][slot, :, :count] = self.values[layer][source, :, :count]
        self.lengths[layer][slot] = count

    def read(self, layer: int, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """(kv_heads, count, head_dim) keys and values, not copied."""
        return self.keys[layer][slot, :, :count], self.values[layer][slot, :, :count]


def bytes_per_token(layers: Sequence[Any]) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return sum(
        2 * len(layer.self_attn.k_proj.weight) * layer.self_attn.k_proj.weight.element_size()
        for layer in layers
    )


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
