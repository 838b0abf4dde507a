"""Recognise full disks and unavailable stores, and retry writes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import StoreError
from pipeline.runtime import stopping
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.storage.objects import UnavailableError

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAUSES_S = (5.0, 15.0, 40.0)
"""Pauses between attempts in seconds; after a success they start from the first one."""

NOT_BACK = f"it did not come back within {sum(PAUSES_S):g} s of waiting"

# Errors of a full or read-only disk, then of a disk or server that is unavailable.
_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EROFS", "EFBIG"),
        *("EIO", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN"),
        *("ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EPIPE", "ETIMEDOUT"),
        *("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTUNREACH"),
    )
    if hasattr(errno, name)
)


def store_fault(error: BaseException, where: str) -> str | None:
    """One-line description of a storage error with its path; `None` for other errors.

    Args:
        error: Error from reading or writing a file; its causes are checked as well.
        where: Path or URL that was read or written, for errors that do not name one.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    if not any(
        isinstance(one, (StoreError, UnavailableError))
        or (isinstance(one, OSError) and one.errno in _ERRNOS)
        for one in seen
    ):
        return None
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:1000] if where in text else f"{where}: {text}"[:1000]


def insist(write: Callable[[], T], where: str, clock: Clock = SYSTEM_CLOCK) -> T:
    """Call `write` until it succeeds, with pauses after storage errors; signals end a pause.

    Raises:
        StoreError: If the store is still unavailable after all pauses.
    """
    for attempt in range(len(PAUSES_S) + 1):
        try:
            return write()
        except Exception as error:
            fault = store_fault(error, where)
            if fault is None:
                raise
            if attempt == len(PAUSES_S):
                raise StoreError(f"{fault}; {NOT_BACK}") from error
        with stopping.interruptible():
            pause(fault, attempt, clock)
    raise AssertionError


def pause(fault: str, attempt: int, clock: Clock) -> None:
    """Log a storage error and wait."""
    logger.warning(
        "storage error (%s); retrying in %g s (%d of %d)",
        fault,
        PAUSES_S[attempt],
        attempt + 1,
        len(PAUSES_S),
    )
    clock.sleep(PAUSES_S[attempt])
