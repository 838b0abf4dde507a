"""Temporarily change a setting of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class ProcessSetting(Generic[T]):
    """Changes a process-wide setting while any thread needs it, then restores it.

    Other threads see the changed setting meanwhile. The first thread to enter saves the previous
    value, and the last to leave restores it.

    Args:
        read: Returns the current value.
        write: Sets a value.
        needed: Maps the previous value to the one that is needed.
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
        """Context manager in which the needed value is set."""
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
        """The value outside of any `held` block."""
        with self._lock:
            return self._before[0] if self._users else self._read()
