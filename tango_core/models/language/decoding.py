"""One decoding step for all sequences, without synchronising with the host.

Tokens, positions and lengths stay on the device, where each step's most likely token is the input
of the next step; the host reads them with `read`. A step attends over all slots in one
call, or slot by slot. On CUDA a step has fixed shapes and addresses, so it is recorded once as a
graph and then costs one launch instead of about 40 per layer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from tango_core.models.kernels import attend
from tango_core.models.language.arena import KVArena
from tango_core.models.language.attention import Work
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.memory_faults import cuda_is_in_use
from tango_core.ops.transfer import upload_together


class _Step(Work):
    """Common part of both attention variants: writes the new keys and values into the arena.

    Args:
        arena: Holds the sequences' keys and values.
        rows: (n,) int64 slots.
        at: (layers, n) int64 position in the slot to which each sequence writes.
    """

    def __init__(self, arena: KVArena, rows: Tensor, at: Tensor) -> None:
        self._arena = arena
        self._rows = rows
        self._at = at
        self._here: dict[tuple[str, torch.device], Tensor] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append (kv_heads, n, head_dim) keys and values, one token per sequence."""
        rows = self.on("rows", self._rows, keys.device)
        at = self.on("at", self._at, keys.device)[layer]
        self._arena.keys[layer][rows, :, at] = keys.transpose(0, 1)
        self._arena.values[layer][rows, :, at] = values.transpose(0, 1)

    def begin(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Append keys and values; returns (n, kv_heads, heads per kv_head, head_dim) queries."""
        self.write(layer, keys, values)
        return queries.reshape(len(keys), -1, *queries.shape[1:]).permute(2, 0, 1, 3)

    def on(self, name: str, value: Tensor, device: torch.device) -> Tensor:
        """Move a tensor to a layer's device, at most once per step."""
        if (name, device) not in self._here:
            self._here[name, device] = value.to(device)
        return self._here[name, device]


class AllSlots(_Step):
    """Attention in one call over all slots, with unwritten positions masked.

    Idle slots are read too: at worst the whole arena for the last sequence of a batch, or for a
    small batch in a larger batch's arena. Reading only the first n slots (a view) would need a CUDA
    graph per n, and recording a graph costs dozens of steps, so this pays only for few values of n
    that are used for long; `tests/gpu/bench_decoding.py` measures the break-even. The mask rules
    out PyTorch's flash kernel, which splits the keys of a sequence over the device but without a
    mask accepts only sequences of equal length.
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
    """Attention with one call per active sequence over exactly its tokens, without padding."""

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


# Eager steps before a graph is recorded: recording costs as much as dozens of steps, and one-letter
# replies end before their tokens are first read.
_WARM_UP = 8


def most_likely(logits: Tensor) -> Tensor:
    """Choose the most likely next tokens, without a read by the host.

    Args:
        logits: (n, V) any float dtype.

    Returns:
        (n,) int64, the first on ties; -1 where the largest logit is NaN or infinite.
    """
    largest, tokens = logits.float().max(dim=-1)  # NaN counts as the largest
    return tokens.masked_fill(~largest.isfinite(), -1)


class Decoding:
    """Generates the replies of the sequences in an arena, token by token.

    Args:
        layer_loop: Runs the layers; they call `attend` of the step's `Work`.
        arena: Holds the prompts' keys and values.
        max_new_tokens: Maximum length of a reply.
        positions: Shape of one token's position: () for counts, (3,) for coordinates.
        before: A `Decoding` of the same arena whose sequences this one continues, with longer
            replies.
        fixed: Compute all slots in every step, idle ones included, with one attention call of fixed
            shape per layer; required for CUDA graphs. Otherwise a step computes only the active
            sequences, each over its own tokens. `None`: true except on a CPU.
    """

    def __init__(
        self,
        layer_loop: LayerLoop,
        arena: KVArena,
        max_new_tokens: int,
        positions: Sequence[int] = (),
        before: Decoding | None = None,
        fixed: bool | None = None,
    ) -> None:
        device = layer_loop.device
        self._layer_loop = layer_loop
        self._arena = arena
        self._fixed = device.type != "cpu" if fixed is None else fixed
        self._max_new_tokens = max_new_tokens
        self._active: list[int] = []
        self._done = [0] * arena.slots
        slots = arena.slots
        self._tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self._positions = torch.zeros((*positions, slots), dtype=torch.long, device=device)
        self._counts = torch.zeros(slots, dtype=torch.long, device=device)
        self._replies = torch.zeros(slots, max_new_tokens, dtype=torch.long, device=device)
        self._lengths = torch.zeros(len(arena.keys), slots, dtype=torch.long, device=device)
        self._shifts = torch.zeros(len(arena.keys), slots, dtype=torch.long, device=device)
        self._all = torch.arange(slots, device=device)
        self._places = torch.arange(arena.capacity, device=device)
        self._host_shifts: dict[int, tuple[int, ...]] = {}
        self._shift_at: tuple[int, ...] = ()
        self._length_at: tuple[int, ...] = ()
        # A graph covers a single real CUDA device.
        self._records = (
            self._fixed and layer_loop.spread.is_one and device.type == "cuda" and cuda_is_in_use()
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager_steps = 0
        if before is not None:
            self._take_over(before)

    @property
    def max_new_tokens(self) -> int:
        """Maximum length of a reply."""
        return self._max_new_tokens

    def _take_over(self, before: Decoding) -> None:
        """Continue the sequences of another `Decoding` of the same arena."""
        self._tokens, self._positions, self._counts = (
            before._tokens,
            before._positions,
            before._counts,
        )
        self._replies[:, : before._max_new_tokens] = before._replies
        self._lengths, self._shifts = before._lengths, before._shifts
        self._done, self._host_shifts = before._done, before._host_shifts
        self._change(before._active)

    def begin(
        self,
        slots: Sequence[int],
        hidden: Tensor,
        last: Tensor,
        shifts: Sequence[Sequence[int]],
    ) -> None:
        """Add prefilled sequences: compute their first token and set the next position.

        Args:
            slots: Their slots.
            hidden: (n, D) output of the last layer at the end of every prompt.
            last: (..., n) int64 position of every prompt's last token without pruning, on the host.
            shifts: Per sequence and layer, by how much pruning lowers that position.
        """
        lengths = [[of_layer[slot] for slot in slots] for of_layer in self._arena.lengths]
        at, places, lengths_there, shifts_there = upload_together(
            [list(slots), last, lengths, list(map(list, shifts))], hidden.device
        )
        best = self._most_likely(hidden)
        self._tokens[at] = best.clamp(min=0)
        self._replies[at, 0] = best
        self._counts[at] = 1
        self._positions[..., at] = places + 1
        self._lengths[:, at] = lengths_there
        self._shifts[:, at] = shifts_there.T
        for slot, of_layers in zip(slots, shifts, strict=True):
            self._done[slot] = 1
            self._host_shifts[slot] = tuple(of_layers)
        self._change([*self._active, *slots])

    def end(self, slots: Collection[int]) -> None:
        """Remove the sequences in these slots."""
        self._change([slot for slot in self._active if slot not in slots])

    def read(self) -> Tensor:
        """Copy the tokens so far to the host: (slots, longest) int64, `done(slot)` valid per slot.

        -1 marks NaN or infinite logits.
        """
        longest = max((self._done[slot] for slot in self._active), default=1)
        return self._replies[:, :longest].cpu()

    def done(self, slot: int) -> int:
        """Number of tokens generated so far in a slot."""
        return self._done[slot]

    def step(self) -> None:
        """Generate one token for every active sequence below its bound."""
        if self._graph is None and self._records and self._eager_steps >= _WARM_UP:
            self._graph = self._layer_loop.recorder.record(self._compute)
            self._records = self._graph is not None
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute()
            self._eager_steps += 1
        for slot in self._active:
            self._done[slot] = min(self._done[slot] + 1, self._max_new_tokens)

    def _compute(self) -> None:
        """Compute one step without a host read; with `fixed`, all shapes are constant."""
        rows = self._all if self._fixed else torch.tensor(self._active, device=self._all.device)
        positions, counts = self._positions[..., rows], self._counts[rows]
        # Idle slots write to unused positions, from 0 on even if never used: a row that attends to
        # nothing becomes NaN, and the slot's next sequence would read it.
        at = (self._lengths[:, rows] + counts - 1).clamp(0, self._arena.capacity - 1)
        shifts = self._shifts[:, rows]
        output = self._layer_loop.run_packed(
            self._layer_loop.embed_tokens(self._tokens[rows]),
            positions,
            self._work(rows, at),
            shifted={layer: positions - shifts[layer] for layer in self._shift_at},
        )
        best = self._most_likely(output)
        self._tokens[rows] = best.clamp(min=0)
        self._replies[rows, counts.clamp(max=self._max_new_tokens - 1)] = best
        self._counts[rows] = (counts + 1).clamp(max=self._max_new_tokens)
        self._positions[..., rows] = positions + 1

    def _work(self, rows: Tensor, at: Tensor) -> Work:
        """The attention of a step."""
        if self._fixed:
            return AllSlots(self._arena, rows, at, self._places, self._length_at)
        counts = [
            [of_layer[slot] + self._done[slot] for slot in self._active]
            for of_layer in self._arena.lengths
        ]
        return SlotBySlot(self._arena, rows, at, self._active, counts)

    def _most_likely(self, hidden: Tensor) -> Tensor:
        """(n,) most likely next tokens, the first on ties; -1 where the logits are not finite."""
        return most_likely(self._layer_loop.logits(hidden))

    def _change(self, active: list[int]) -> None:
        """Set the active slots and drop the graph if the layers' shifts or lengths changed."""
        self._active = active
        lengths = self._arena.lengths
        layers = range(1, len(lengths))
        shift_at = {
            layer
            for layer in layers
            if any(len({*self._host_shifts[slot][layer - 1 : layer + 1]}) > 1 for slot in active)
        }
        length_at = {
            layer
            for layer in layers
            if any(lengths[layer][slot] != lengths[layer - 1][slot] for slot in active)
        }
        if self._fixed:
            # Keep superfluous masks and shifts: they are harmless, but a new graph is costly.
            shift_at, length_at = shift_at | {*self._shift_at}, length_at | {*self._length_at}
        found = tuple(sorted(shift_at)), tuple(sorted(length_at))
        if found != (self._shift_at, self._length_at):
            self._shift_at, self._length_at = found
            self._graph, self._eager_steps = None, 0
