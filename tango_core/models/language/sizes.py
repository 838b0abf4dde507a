"""Sequences of similar length are served together, and each size keeps an arena of its own.

A slot costs its whole capacity wherever a step reads all of it. So short sequences do not share an
arena with long ones, and one that is set aside is found again with the graph of its steps.
"""

from __future__ import annotations

from tango_core.models.language.arena import KVArena
from tango_core.models.language.decoding import Decoding

ANY = 0
"""The only size where a slot costs no more than what is written to it."""

_SMALLEST = 256
# Capacities are multiples of this, so that an arena fits the next batch, too.
_ROUNDED_TO = 64


def size_of(need: int) -> int:
    """The size of a sequence that needs so many tokens: the power of 2 that holds them."""
    return max(_SMALLEST, 1 << (need - 1).bit_length())


def capacity_of(need: int, size: int) -> int:
    """The capacity of an arena for sequences of a size, the longest of which needs so much."""
    step = max(_ROUNDED_TO, size // 8)
    return -(-need // step) * step


class Shelf:
    """Arenas that are set aside, with what decodes in them; the one set aside last is the last."""

    def __init__(self) -> None:
        self._arenas: dict[int, tuple[KVArena, Decoding | None]] = {}

    def __len__(self) -> int:
        return len(self._arenas)

    @property
    def tokens(self) -> int:
        """Tokens that all of them have room for."""
        return sum(arena.tokens for arena, _ in self._arenas.values())

    def arena(self, size: int) -> KVArena | None:
        """The arena of a size, which stays here."""
        return self._arenas.get(size, (None, None))[0]

    def put(self, size: int, arena: KVArena, decoding: Decoding | None) -> None:
        """Set an arena aside; no sequence may be decoding in it."""
        self._arenas[size] = arena, decoding

    def take(self, size: int) -> tuple[KVArena | None, Decoding | None]:
        """The arena of a size, if there is one."""
        return self._arenas.pop(size, (None, None))

    def shrink(self, tokens: int) -> list[int]:
        """Give memory back until the others have room for so many tokens; the sizes given up."""
        given_up = []
        while self._arenas and self.tokens > tokens:
            given_up.append(next(iter(self._arenas)))
            del self._arenas[given_up[-1]]
        return given_up
