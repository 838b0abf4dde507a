"""Keys and values of several sequences, allocated once and written in place."""

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
        cleared: Set all of a slot to zero for every sequence: a kernel with a mask reads what is
            masked, too, and no NaN may be left there. Without it, memory is taken only for what is
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
            self.keys.append(torch.empty(shape, dtype=dtype, device=weight.device))
            self.values.append(torch.empty(shape, dtype=dtype, device=weight.device))
        self.lengths = [[0] * slots for _ in layers]
        self._free = list(range(slots))[::-1]
        if self._cleared:
            for tensor in (*self.keys, *self.values):
                tensor.zero_()

    @property
    def num_free(self) -> int:
        """Slots without a sequence."""
        return len(self._free)

    def take(self) -> int:
        """A slot for a new sequence."""
        slot = self._free.pop()
        for keys, values, lengths in zip(self.keys, self.values, self.lengths, strict=True):
            lengths[slot] = 0
            if self._cleared:
                keys[slot].zero_()
                values[slot].zero_()
        return slot

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
