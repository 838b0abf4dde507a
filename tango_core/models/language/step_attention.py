"""How a step of decoding attends: over all slots in one call, or slot by slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tango_core.models.fused_attention import attend
from tango_core.models.language.arena import KVArena
from tango_core.models.language.packed_attention import Work


class _Step(Work):
    """What both ways to attend have in common: the new keys and values are written in place.

    Args:
        arena: Of the sequences.
        rows: (n,) int64 slots.
        at: (layers, n) int64 where each writes, 0 or more.
    """

    def __init__(self, arena: KVArena, rows: Tensor, at: Tensor) -> None:
        self._arena = arena
        self._rows = rows
        self._at = at
        self._here: dict[tuple[str, torch.device], Tensor] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append (kv_heads, n, head_dim) keys and values, one to every sequence."""
        rows = self.on("rows", self._rows, keys.device)
        at = self.on("at", self._at, keys.device)[layer]
        self._arena.keys[layer][rows, :, at] = keys.transpose(0, 1)
        self._arena.values[layer][rows, :, at] = values.transpose(0, 1)

    def begin(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Append keys and values; (n, kv_heads, heads per kv_head, head_dim) queries."""
        self.write(layer, keys, values)
        return queries.reshape(len(keys), -1, *queries.shape[1:]).permute(2, 0, 1, 3)

    def on(self, name: str, value: Tensor, device: torch.device) -> Tensor:
        """A tensor on the device of a layer; each is moved once per step."""
        if (name, device) not in self._here:
            self._here[name, device] = value.to(device)
        return self._here[name, device]


class AllSlots(_Step):
    """One call over all slots, with what is not there yet masked.

    Idle slots are read, too: at worst the whole arena for one sequence, which is what is left of a
    batch, or a small batch in the arena of a larger one. A step over the first n slots would be the
    same call on a view; slots would be given out from the lowest on. But every n needs a graph of
    its own, and recording one costs dozens of steps, so n had to be one of few, and a smaller one
    recorded only where it would be used for long: `tests/gpu/bench_decoding.py` is where a GPU can
    say how long that is. The mask rules out PyTorch's flash kernel, which splits the keys of a
    sequence over the device; without a mask that takes sequences of equal length only.
    """

    def __init__(
        self, arena: KVArena, rows: Tensor, at: Tensor, places: Tensor, length_at: Sequence[int]
    ) -> None:
        super().__init__(arena, rows, at)
        starts = (0, *length_at)
        self._mask_of = {
            layer: f"mask {start}"
            for start, stop in zip(starts, (*starts[1:], len(at)), strict=True)
            for layer in range(start, stop)
        }
        self._masks = {f"mask {n}": (places <= at[n][:, None])[:, None, None] for n in starts}

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """See `Work`."""
        num_heads, num_rows, width = queries.shape
        grouped = self.begin(layer, queries, keys, values)
        name = self._mask_of[layer]
        mixed = attend(
            grouped,
            self._arena.keys[layer],
            self._arena.values[layer],
            mask=self.on(name, self._masks[name], keys.device),
            scale=scaling,
        )
        return mixed.reshape(num_rows, num_heads, width)


class SlotBySlot(_Step):
    """A call per active sequence, over exactly the tokens it has: nothing is padded."""

    def __init__(
        self,
        arena: KVArena,
        rows: Tensor,
        at: Tensor,
        slots: Sequence[int],
        counts: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(arena, rows, at)
        self._slots = slots
        self._counts = counts

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """See `Work`."""
        num_heads, num_rows, width = queries.shape
        grouped = self.begin(layer, queries, keys, values)
        mixed = []
        for own, slot, count in zip(grouped, self._slots, self._counts[layer], strict=True):
            seen_keys, seen_values = self._arena.read(layer, slot, count)
            mixed.append(attend(own[None], seen_keys[None], seen_values[None], scale=scaling))
        return torch.cat(mixed).reshape(num_rows, num_heads, width)
