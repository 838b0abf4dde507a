"""Continuous batching: requests about many clips and methods, prefilled and decoded together.

Requests wait until their keys and values fit the token budget. Then the requests that fit are
prefilled in one packed pass (`prefill.py`), and all active sequences are decoded together
(`decoding.py`); a sequence that ends frees its slot. Where a decoding step reads whole slots, a
slot costs its full capacity. Then sequences of similar length are served together: every size has
its own arena, and an arena that is set aside keeps the CUDA graph of its steps for later reuse.

A failing request does not affect the others. A pass that fails is split in halves and repeated
until the failing request is found; after an out-of-memory error, the batch size is halved
permanently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from tango_core.errors import InputError
from tango_core.models.base import AnswerSession
from tango_core.models.language.arena import MAX_SEQUENCES, KVArena
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.prefill import (
    DecodedSequence,
    LaidOutRequest,
    Part,
    PassLayout,
    Prefill,
    Reply,
    RequestInFlight,
    parts_of,
    single_parts,
)
from tango_core.models.memory_faults import free_memory, is_out_of_memory
from tango_core.types import Answer, NotFiniteError

ANY = 0
"""Size of every sequence if a slot costs no more than the tokens written to it."""

_SMALLEST = 256
# Capacities are rounded up to multiples of this, so that an arena often fits the next batch.
_ROUNDED_TO = 64


def size_of(need: int) -> int:
    """Size class of a sequence of `need` tokens: the next power of 2."""
    return max(_SMALLEST, 1 << (need - 1).bit_length())


def capacity_of(need: int, size: int) -> int:
    """Slot capacity of an arena for a size class whose longest sequence has `need` tokens."""
    step = max(_ROUNDED_TO, size // 8)
    return -(-need // step) * step


class Shelf:
    """Arenas set aside for reuse with their `Decoding`, oldest first."""

    def __init__(self) -> None:
        self._arenas: dict[int, tuple[KVArena, Decoding | None]] = {}

    def __len__(self) -> int:
        return len(self._arenas)

    @property
    def tokens(self) -> int:
        """Total capacity of these arenas in tokens."""
        return sum(arena.tokens for arena, _ in self._arenas.values())

    def arena(self, size: int) -> KVArena | None:
        """The arena of a size class, without removing it."""
        return self._arenas.get(size, (None, None))[0]

    def put(self, size: int, arena: KVArena, decoding: Decoding | None) -> None:
        """Set an arena aside; none of its sequences may still be decoding."""
        self._arenas[size] = arena, decoding

    def take(self, size: int) -> tuple[KVArena | None, Decoding | None]:
        """Remove and return the arena of a size class, or `None`s."""
        return self._arenas.pop(size, (None, None))

    def shrink(self, tokens: int) -> list[int]:
        """Free the oldest arenas until at most `tokens` remain; returns the freed sizes."""
        given_up = []
        while self._arenas and self.tokens > tokens:
            given_up.append(next(iter(self._arenas)))
            del self._arenas[given_up[-1]]
        return given_up


# How many later parts of another size may be served before a waiting part.
_MAX_OVERTAKING = 64


# Decoding steps between two reads of the tokens; each read synchronises with the device. The first
# tokens of a reply, this many, are read one by one, because most replies end there.
_STEPS_PER_LOOK = 4


class BatchEngine(Protocol):
    """The interface of an engine that `BatchSession` uses."""

    layer_loop: LayerLoop
    eos_ids: frozenset[int]

    def clock(self) -> float:
        """Current time in seconds, after all device work has finished."""

    def finish(self, reply: Reply) -> Answer:
        """Turn token ids and seconds into an answer."""

    def not_finite(self) -> NotFiniteError:
        """The error of a prompt whose logits are NaN or infinite."""


class BatchSession(AnswerSession[LaidOutRequest]):
    """Answers requests together, within a budget of tokens.

    Args:
        engine: Engine whose layers are used.
        batch_tokens: Maximum number of tokens, replies included, whose keys and values are held at
            once; a larger part of a request is answered alone.
        guard: Called with every error first; raises if no other request can be answered after it.
        padded: Whether a slot costs its whole capacity, in memory and in every step. `None`: true
            except on a CPU.
    """

    def __init__(
        self,
        engine: BatchEngine,
        batch_tokens: int,
        guard: Callable[[Exception], None] = lambda error: None,
        padded: bool | None = None,
    ) -> None:
        self._engine = engine
        self._loop = engine.layer_loop
        self._budget = batch_tokens
        self._guard = guard
        self._padded = self._loop.device.type != "cpu" if padded is None else padded
        self._waiting: deque[Part] = deque()
        self._running: list[DecodedSequence] = []
        self._arena: KVArena | None = None
        self._decoding: Decoding | None = None
        self._size = ANY
        self._shelf = Shelf()
        self._overtaking = 0
        self._one_by_one = 0
        self._finished: list[tuple[LaidOutRequest, list[Answer] | Exception]] = []

    @property
    def full(self) -> bool:
        """Whether the requests in flight fill the budget."""
        waiting = sum(part.tokens for part in self._waiting)
        return waiting + sum(one.tokens for one in self._running) >= self._budget

    @property
    def busy(self) -> bool:
        """See `AnswerSession`."""
        return bool(self._waiting or self._running or self._finished)

    def add(self, request: LaidOutRequest) -> None:
        """See `AnswerSession`.

        Raises:
            ValueError: If `max_new_tokens` is smaller than 1.
        """
        if request.max_new_tokens < 1:
            raise InputError(f"max_new_tokens must be 1 or larger, got {request.max_new_tokens}")
        replies = [Reply(prompt) for prompt in request.prompts]
        work = RequestInFlight(request, replies, len(replies))
        if not replies:
            self._finished.append((request, []))
        self._waiting.extend(parts_of(work))

    @torch.inference_mode()
    def step(self) -> list[tuple[LaidOutRequest, list[Answer] | Exception]]:
        """Prefill the parts that fit, then decode until the next read of the tokens."""
        if parts := self._choose():
            self._prefill(parts)
        if self._running:
            self._decode()
        if not self._running and not self._padded and not self._held(self._waiting):
            self._forget_arena()  # with `padded`, its CUDA graph is worth keeping
        finished, self._finished = self._finished, []
        return finished

    # Selection of waiting requests, and their memory

    def _choose(self) -> list[Part]:
        """Choose the parts to prefill next, by size class and arrival; may be empty."""
        if not self._waiting:
            return []
        held = sum(one.tokens for one in self._running)
        if self._running:
            # Wait until half the budget is free: many small passes cost more than they gain.
            if self._one_by_one or held > self._budget / 2:
                return []
            assert self._arena is not None
            return self._take(self._arena.capacity, self._arena.num_free, self._budget - held)
        front = self._waiting[0]
        self._enter(self._size_of(front))
        most = 1 if self._one_by_one else MAX_SEQUENCES
        slots = capacity = tokens = 0
        chosen: list[Part] = []
        for part in self._of_this_size():
            larger, more = max(capacity, part.need), slots + len(part.members)
            room = capacity_of(larger, self._size) * more
            tokens = room if self._padded else tokens + part.tokens
            if part is not front and (more > most or tokens > self._budget):
                break
            slots, capacity = more, larger
            chosen.append(part)
        if not self._arena_for(slots, capacity, front, self._held(chosen)):
            return []
        return self._take(capacity, slots, self._budget)

    def _take(self, capacity: int, slots: int, tokens: int) -> list[Part]:
        """Take the first parts of this size that fit; the front part only needs free slots."""
        taken: list[Part] = []
        for part in self._of_this_size():
            fits = part.tokens <= tokens or not (taken or self._running)
            if part.need > capacity or len(part.members) > slots or not fits:
                break
            behind = part is not self._waiting[0]
            if (self._one_by_one and taken) or (behind and self._overtaking >= _MAX_OVERTAKING):
                break
            self._overtaking = self._overtaking + 1 if behind else 0
            self._waiting.remove(part)
            taken.append(part)
            slots, tokens = slots - len(part.members), tokens - part.tokens
        self._one_by_one = max(0, self._one_by_one - len(taken))
        return taken

    def _size_of(self, part: Part) -> int:
        """Size class of a part."""
        return size_of(part.need) if self._padded else ANY

    def _of_this_size(self) -> list[Part]:
        """Waiting parts of the current arena's size, in order of arrival."""
        return [part for part in self._waiting if self._size_of(part) == self._size]

    def _enter(self, size: int) -> None:
        """Switch to another size class; no sequence may be decoding."""
        if size != self._size:
            if self._arena is not None:
                self._shelf.put(self._size, self._arena, self._decoding)
            self._arena, self._decoding = self._shelf.take(size)
            self._size = size

    @staticmethod
    def _held(parts: Iterable[Part]) -> int:
        """Slots of prefixes that are no longer decoded and that these parts continue."""
        prefixes = {id(part.prefix): part.prefix for part in parts if part.prefix is not None}
        return sum(one.slot is not None and not one.decoding for one in prefixes.values())

    def _arena_for(self, slots: int, capacity: int, front: Part, held: int) -> bool:
        """Ensure that an arena exists; `False` if there is no memory even for the front part."""
        capacity, arena = capacity_of(capacity, self._size), self._arena
        if arena is not None and capacity <= arena.capacity and slots <= arena.num_free + held:
            self._keep_aside(self._budget - arena.tokens)
            return True
        self._forget_arena()
        self._keep_aside(self._budget - slots * capacity)
        try:
            self._arena = KVArena(self._loop.layers, slots, capacity, self._loop.dtype)
            return True
        except Exception as caught:
            self._guard(caught)
            if not is_out_of_memory(caught):
                raise
            error = caught.with_traceback(None)  # its frames hold the tensors allocated so far
        self._keep_aside(0)
        free_memory()
        self._budget = max(1, min(self._budget, slots * capacity) // 2)
        if slots <= len(front.members):
            self._waiting.popleft()
            self._split_or_fail(front, error)
        return False

    def _forget_arena(self) -> None:
        """Free the current arena; the prefixes in it must be recomputed."""
        self._arena = self._decoding = None
        self._forget_prefixes(self._size)

    def _keep_aside(self, tokens: int) -> None:
        """Limit the arenas of other sizes to this many tokens in total."""
        for size in self._shelf.shrink(tokens):
            self._forget_prefixes(size)

    def _forget_prefixes(self, size: int) -> None:
        """Drop the prefixes held in the freed arena of a size."""
        for part in self._waiting:
            if part.prefix is not None and self._size_of(part) == size:
                part.prefix.slot, part.prefix.decoding = None, False

    def _arena_of(self, part: Part) -> KVArena:
        """The arena that holds the prefix of a part."""
        size = self._size_of(part)
        arena = self._arena if size == self._size else self._shelf.arena(size)
        assert arena is not None
        return arena

    # Prefill

    def _prefill(self, parts: Sequence[Part]) -> None:
        """Prefill parts in one pass; after a failure, in halves."""
        try:
            self._pass(parts)
            return
        except Exception as caught:
            self._guard(caught)
            error = caught.with_traceback(None)  # its frames hold the tensors of the pass
        if is_out_of_memory(error):
            self._keep_aside(0)
            free_memory()
            tokens = sum(part.tokens for part in parts)
            self._budget = max(1, min(self._budget, tokens // 2))
        if len(parts) > 1:
            half = len(parts) // 2
            self._prefill(parts[:half])
            self._prefill(parts[half:])
        elif is_out_of_memory(error) and self._running:
            self._waiting.appendleft(parts[0])  # retried once the others have ended
            self._one_by_one += 1
        else:
            self._split_or_fail(parts[0], error)

    def _pass(self, parts: Sequence[Part]) -> None:
        """Prefill the parts together and compute the first token of every reply."""
        assert self._arena is not None
        start = self._engine.clock()
        layout = PassLayout(self._arena)
        sequences = layout.sequences
        try:
            for part in parts:
                layout.add(part)
            hidden = Prefill(self._loop, self._arena, layout.segments).run()[layout.ends]
            seconds = self._engine.clock() - start
            decoding = self._decoding_for(sequences)
            decoding.begin(
                [one.slot for one in sequences],
                hidden,
                torch.stack([one.reply.prompt.positions[..., -1] for one in sequences], dim=-1),
                [one.shifts(self._arena.lengths) for one in sequences],
            )
            self._running += sequences
            firsts = decoding.read()[:, 0].tolist()
        except Exception:
            self._running = [one for one in self._running if one not in sequences]
            if self._decoding is not None:
                self._decoding.end({one.slot for one in sequences})
            layout.undo()
            raise
        waited = self._engine.clock() - start
        layout.share_out(seconds)
        for part in parts:
            if part.prefix is not None:
                part.prefix.waiting -= 1
        for one in sequences:
            one.reply.first = waited
            self._extend(one, [firsts[one.slot]])

    def _decoding_for(self, sequences: Sequence[DecodedSequence]) -> Decoding:
        """The `Decoding` of the arena, with capacity for these sequences."""
        assert self._arena is not None
        longest = max(one.work.request.max_new_tokens for one in [*self._running, *sequences])
        if self._decoding is None or self._decoding.max_new_tokens < longest:
            axes = sequences[0].reply.prompt.positions.shape[:-1]
            self._decoding = Decoding(self._loop, self._arena, longest, axes, self._decoding)
        return self._decoding

    # Decoding

    def _decode(self) -> None:
        """Run some decoding steps for all sequences, then read their tokens."""
        assert self._decoding is not None
        start = self._engine.clock()
        bounds = [one.work.request.max_new_tokens - len(one.reply.tokens) for one in self._running]
        first = min(len(one.reply.tokens) for one in self._running) < _STEPS_PER_LOOK
        steps = _STEPS_PER_LOOK if self._padded and not first else 1
        try:
            for _ in range(min(steps, max(bounds))):
                self._decoding.step()
            tokens = self._decoding.read()
        except Exception as caught:
            self._guard(caught)
            self._again_one_by_one(caught.with_traceback(None))
            return
        share = (self._engine.clock() - start) / len(self._running)
        for one in tuple(self._running):
            one.reply.decode += share
            done = slice(len(one.reply.tokens), self._decoding.done(one.slot))
            self._extend(one, tokens[one.slot, done].tolist())

    def _extend(self, one: DecodedSequence, tokens: Sequence[int]) -> None:
        """Append tokens to a reply, up to its end token or bound."""
        if one.work.failed:
            return
        longest, eos_ids = one.work.request.max_new_tokens, self._engine.eos_ids
        for token in tokens:
            if token < 0:
                self._fail(one.work, self._engine.not_finite())
                return
            one.reply.tokens.append(token)
            if token in eos_ids or len(one.reply.tokens) >= longest:
                self._retire(one)
                one.work.open -= 1
                if not one.work.open:
                    answers = [self._engine.finish(reply) for reply in one.work.replies]
                    self._finished.append((one.work.request, answers))
                return

    def _retire(self, one: DecodedSequence) -> None:
        """End a sequence and free its slot unless other parts need the prefix in it."""
        assert self._arena is not None
        assert self._decoding is not None
        self._running.remove(one)
        self._decoding.end({one.slot})
        prefix = one.prefix
        if prefix is not None and prefix.slot == one.slot:
            prefix.decoding = False
            if prefix.waiting:
                return
        self._arena.give_back(one.slot)

    def _again_one_by_one(self, error: Exception) -> None:
        """Restart all active sequences one by one; a single one fails with the error."""
        running, self._running = self._running, []
        if is_out_of_memory(error):
            self._keep_aside(0)
            free_memory()
            self._budget = max(1, self._budget // 2)
        self._forget_arena()
        if len(running) == 1:
            self._fail(running[0].work, error)
            return
        for one in reversed(running):
            one.reply.tokens.clear()
            self._waiting.extendleft(single_parts(one.work, [one.index]))
        self._one_by_one += len(running)

    # Failures

    def _split_or_fail(self, part: Part, error: Exception) -> None:
        """Handle a part that failed alone: after out of memory, retry its prompts one by one."""
        if len(part.members) > 1 and is_out_of_memory(error):
            self._waits_no_more(part)
            self._waiting.extendleft(reversed(single_parts(part.work, part.members)))
            self._one_by_one += len(part.members)
        else:
            self._fail(part.work, error)

    def _fail(self, work: RequestInFlight, error: Exception) -> None:
        """Finish a request with an error."""
        if work.failed:
            return
        work.failed = True
        for part in [part for part in self._waiting if part.work is work]:
            self._waits_no_more(part)
            self._waiting.remove(part)
        for one in [one for one in self._running if one.work is work]:
            self._retire(one)
        self._finished.append((work.request, error))

    def _waits_no_more(self, part: Part) -> None:
        """Account for a part that leaves the queue; free its prefix's slot after the last part."""
        prefix = part.prefix
        if prefix is None:
            return
        prefix.waiting -= 1
        if not prefix.waiting and prefix.slot is not None and not prefix.decoding:
            self._arena_of(part).give_back(prefix.slot)
            prefix.slot = None
