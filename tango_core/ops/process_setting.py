"""Temporarily change a setting of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """Sets something while anybody needs it, and sets it back.

    Other threads compute with it, too, meanwhile. The first to enter notes what was set, and the
    last to leave sets it again.

    Args:
        read: What is set.
        write: Sets it.
        needed: What it must be, from what was set.
    """

    def __init__(
        self, read: Callable[[], T], write: Callable[[T], None], needed: Callable[[T], T]
    ) -> None:
        self._read, self._write, self._needed = read, write, needed
        self._lock = threading.Lock()
        self._users = 0
        self._before: list[T] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """As it is needed, inside the block."""
        with self._lock:
            if not self._users:
                self._before = [self._read()]
                self._write(self._needed(self._before[0]))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before.pop())

    def outside(self) -> T:
        """What is set where nobody needs it otherwise."""
        with self._lock:
            return self._before[0] if self._users else self._read()
