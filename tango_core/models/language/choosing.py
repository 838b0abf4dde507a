"""Which waiting requests are prefilled next, and the memory that they get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from tango_core.models.language.arena import KVArena
from tango_core.models.language.budget import MAX_SEQUENCES
from tango_core.models.language.decoding import Decoding
from tango_core.models.language.layer_loop import LayerLoop
from tango_core.models.language.parts import Part
from tango_core.models.language.pass_layout import DecodedSequence
from tango_core.models.language.sizes import ANY, Shelf, capacity_of, size_of
from tango_core.models.memory_faults import free_memory, is_out_of_memory

# Parts of another size that are served before one that came earlier.
_MAX_OVERTAKING = 64


class Choosing(ABC):
    """The parts that wait, those that run, and the arenas; half of a `BatchSession`.

    Args:
        layer_loop: Its layers' keys and values are held.
        batch_tokens: Tokens held at once.
        guard: Is shown every error first.
        padded: Whether a slot costs its whole capacity.
    """

    def __init__(
        self,
        layer_loop: LayerLoop,
        batch_tokens: int,
        guard: Callable[[Exception], None],
        padded: bool,
    ) -> None:
        self._loop = layer_loop
        self._budget = batch_tokens
        self._guard = guard
        self._padded = padded
        self._waiting: deque[Part] = deque()
        self._running: list[DecodedSequence] = []
        self._arena: KVArena | None = None
        self._decoding: Decoding | None = None
        self._size = ANY
        self._shelf = Shelf()
        self._overtaking = 0
        self._one_by_one = 0

    @abstractmethod
    def _split_or_fail(self, part: Part, error: Exception) -> None:
        """Give up a part that has no room even alone."""

    def _choose(self) -> list[Part]:
        """The parts that are prefilled next, by size in the order of their arrival, or none."""
        if not self._waiting:
            return []
        held = sum(one.tokens for one in self._running)
        if self._running:
            # Half the budget at once: many small passes would cost more than they gain.
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
        """Take the first parts of this size that fit; the front one only has to have slots."""
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
        """Which parts it is served with."""
        return size_of(part.need) if self._padded else ANY

    def _of_this_size(self) -> list[Part]:
        """Waiting parts that the arena is for, in the order of their arrival."""
        return [part for part in self._waiting if self._size_of(part) == self._size]

    def _enter(self, size: int) -> None:
        """Serve sequences of a size from now on, when no other one is being decoded."""
        if size != self._size:
            if self._arena is not None:
                self._shelf.put(self._size, self._arena, self._decoding)
            self._arena, self._decoding = self._shelf.take(size)
            self._size = size

    @staticmethod
    def _held(parts: Iterable[Part]) -> int:
        """Slots of prefixes whose sequence has ended, in which questions of these parts go on."""
        prefixes = {id(part.prefix): part.prefix for part in parts if part.prefix is not None}
        return sum(one.slot is not None and not one.decoding for one in prefixes.values())

    def _arena_for(self, slots: int, capacity: int, front: Part, held: int) -> bool:
        """Make sure that there is an arena; `False` if not even the front part has room."""
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
            error = caught.with_traceback(None)  # whose frames hold the layers made so far
        self._keep_aside(0)
        free_memory()
        self._budget = max(1, min(self._budget, slots * capacity) // 2)
        if slots <= len(front.members):
            self._waiting.popleft()
            self._split_or_fail(front, error)
        return False

    def _forget_arena(self) -> None:
        """Give its memory back; prefixes that it held are computed again."""
        self._arena = self._decoding = None
        self._forget_prefixes(self._size)

    def _keep_aside(self, tokens: int) -> None:
        """Keep arenas of other sizes for so many tokens at most."""
        for size in self._shelf.shrink(tokens):
            self._forget_prefixes(size)

    def _forget_prefixes(self, size: int) -> None:
        """The arena of a size is gone."""
        for part in self._waiting:
            if part.prefix is not None and self._size_of(part) == size:
                part.prefix.slot, part.prefix.decoding = None, False

    def _arena_of(self, part: Part) -> KVArena:
        """The arena that holds the prefix of a part."""
        size = self._size_of(part)
        arena = self._arena if size == self._size else self._shelf.arena(size)
        assert arena is not None
        return arena
