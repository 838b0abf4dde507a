"""Fixed memory for the keys and values of several sequences, and its size in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class KVArena:
    """Preallocated keys and values of several sequences in every layer, one slot per sequence.

    Layers behind a pruner hold fewer tokens of a sequence than those before it.

    Args:
        layers: Layers of a stock text model.
        slots: Maximum number of sequences.
        capacity: Maximum number of tokens of a sequence, its reply included.
        dtype: Type of keys and values.
        cleared: Whether a slot is filled with zeros before a sequence uses it. A kernel with a mask
            reads masked entries too, so they must not be NaN. If false, the operating system
            reserves memory only for entries that are written. `None`: false on a CPU, where
            masked entries are never read, else true.
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
        """Number of tokens that all slots hold together."""
        return self.slots * self.capacity

    @property
    def num_free(self) -> int:
        """Number of slots without a sequence."""
        return len(self._free)

    def take(self) -> int:
        """Reserve a slot for a new sequence."""
        slot = self._free.pop()
        for lengths in self.lengths:
            lengths[slot] = 0
        if self._cleared and slot in self._used:
            self._clear(slot)
        self._used.add(slot)
        return slot

    def _clear(self, slot: int) -> None:
        """Zero a slot in all layers, with one launch per device."""
        per_device: dict[torch.device, list[Tensor]] = {}
        for tensor in (*self.keys, *self.values):
            per_device.setdefault(tensor.device, []).append(tensor[slot])
        for tensors in per_device.values():
            torch._foreach_zero_(tensors)

    def give_back(self, slot: int) -> None:
        """Release the slot of a sequence that has ended."""
        assert slot not in self._free
        self._free.append(slot)

    def write(self, layer: int, slot: int, keys: Tensor, values: Tensor) -> None:
        """Append (kv_heads, n, head_dim) keys and values to the sequence in a slot."""
        at = self.lengths[layer][slot]
        self.lengths[layer][slot] = end = at + keys.shape[1]
        self.keys[layer][slot, :, at:end] = keys
        self.values[layer][slot, :, at:end] = values

    def copy(self, layer: int, source: int, slot: int, count: int) -> None:
        """Copy the first tokens of another slot; with `source == slot`, truncate the sequence."""
        if source != slot:
            self.keys[layer][slot, :, :count] = self.keys[layer][source, :, :count]
            self.values[layer][slot, :, :count] = self.values[layer][source, :, :count]
        self.lengths[layer][slot] = count

    def read(self, layer: int, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """(kv_heads, count, head_dim) views of keys and values."""
        return self.keys[layer][slot, :, :count], self.values[layer][slot, :, :count]


def bytes_per_token(layers: Sequence[Any]) -> int:
    """Bytes of the keys and values of one token in all layers."""
    return sum(
        2 * len(layer.self_attn.k_proj.weight) * layer.self_attn.k_proj.weight.element_size()
        for layer in layers
    )


# Questions that continue one prefix in the same pass. Each has a copy of the prefix's keys and
# values: 0.36 GB for 6,273 tokens of a 7B model.
MAX_BATCH = 8
# Maximum number of sequences at once, of any length.
MAX_SEQUENCES = 64

# Tokens processed together on a CPU, enough to amortise the overhead of a call. Small layers stay
# in the CPU's cache if there are few tokens; with many, the weights of large layers are read less
# often.
_SMALL_LAYER_BYTES = 8 * 2**20
_ON_CPU = {"small": 1024, "large": 4096}
_AT_MOST = 65_536


def on_cpu(layer_bytes: int) -> int:
    """Value of `answer.batch_tokens: auto` on a CPU, in tokens.

    Args:
        layer_bytes: Bytes of one layer's weights.
    """
    return _ON_CPU["small" if layer_bytes < _SMALL_LAYER_BYTES else "large"]


def on_gpu(free: int, token_bytes: int) -> int:
    """Value of `answer.batch_tokens: auto` on a GPU: the tokens that fit half of its free memory.

    Args:
        free: Free bytes after the weights are loaded; 0 gives the smallest value.
        token_bytes: Bytes of a token's keys and values in all layers, plus its `row_bytes`.
    """
    return max(_ON_CPU["large"], min(_AT_MOST, free // 2 // token_bytes))


def row_bytes(hidden_size: int, intermediate_size: int, itemsize: int) -> int:
    """Bytes of a token's intermediate results in the widest layer."""
    return (4 * hidden_size + 3 * intermediate_size) * itemsize


def held_tokens(budget: int, need: int, together: int, prompts: int) -> int:
    """Maximum number of tokens whose keys and values are held at once.

    Args:
        budget: `answer.batch_tokens`; 1 answers the parts of a request one after another.
        need: Tokens of the longest prompt including its reply.
        together: Prompts of a part (questions that share a prefix), which is never split.
        prompts: Number of prompts of the whole job.
    """
    part = min(together, MAX_BATCH) * need
    return max(part, min(budget, min(MAX_SEQUENCES, prompts) * need))
