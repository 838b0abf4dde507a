"""A clock as a parameter, for tests that simulate time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Ticker:
    """Calls a function at intervals from a daemon thread.

    Args:
        call: Function that must not raise.
        every_s: Seconds between two calls.
        name: Name of the thread.
    """

    def __init__(self, call: Callable[[], object], every_s: float, name: str) -> None:
        self._call = call
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start calling; the first call is after one interval."""
        self._thread.start()

    def stop(self, *, wait: bool = True) -> None:
        """Stop calling.

        Args:
            wait: Whether to wait for a running call.
        """
        self._end.set()
        if wait and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self._call()


class Clock:
    """The clock of this machine; tests pass subclasses that simulate time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never decreases."""
        return time.monotonic()

    def now(self) -> datetime:
        """Date and time in UTC, with the time zone."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def repeat(self, call: Callable[[], object], every_s: float, name: str) -> Ticker:
        """Create a repeated call, which must be started; see `Ticker`."""
        return Ticker(call, every_s, name)


SYSTEM_CLOCK = Clock()
