"""Time as a parameter, so that a test can let hours pass in one process."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the pipeline and the driver ask of time."""

    def monotonic(self) -> float:
        """Seconds since any fixed moment; never goes back."""
        ...

    def now(self) -> datetime:
        """Date and time in UTC, with the time zone."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = SystemClock()
