"""Show what a job on a cluster prints, until it is over; a network that fails is asked again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from jobs.submit.head import Head, HeadError, HeadLostError
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

logger = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""Seconds without any answer of the head after which a client gives up."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0
# A connection may die without a word; a job prints a line every 15 s.
_SILENCE_S = 60.0
_STOPPED, _NO_CODE = 143, 2


class LostError(HeadLostError):
    """The head did not answer for longer than `PATIENCE_S`; the job may well go on."""


class _Printer:
    """Writes a log that is sent again from its beginning after every new connection.

    Args:
        write: Takes each new piece of text.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = 0
        self._position = 0

    def restart(self) -> None:
        """The text that comes now is the beginning of the log."""
        self._position = 0

    def add(self, text: str) -> None:
        """Write what was not written before."""
        new = text[max(0, self._written - self._position) :]
        self._position += len(text)
        if new:
            self._write(new)
            self._written = self._position


def follow(
    head: Head,
    job_id: str,
    write: Callable[[str], None],
    *,
    patience_s: float = PATIENCE_S,
    clock: Clock = SYSTEM_CLOCK,
) -> JobDetails:
    """Write the whole log of a job as it grows, and return when the job is over.

    Args:
        head: Of the cluster.
        job_id: Of the job.
        write: Takes each new piece of text.
        patience_s: Seconds for which the head may be silent.
        clock: For the pauses.

    Returns:
        The job at its end.

    Raises:
        LostError: If the head did not answer for `patience_s`.
        HeadError: If the cluster does not know the job.
    """
    printer = _Printer(write)
    pause_s, lost_at = _FIRST_PAUSE_S, None
    while True:
        try:
            is_whole = _show(head, job_id, printer)
            details = head.details(job_id)
            if not is_whole:
                _show_at_once(head, job_id, printer)
            pause_s, lost_at = _FIRST_PAUSE_S, None
            if details.status.is_terminal():
                return details
        except HeadLostError as error:
            now = clock.monotonic()
            if lost_at is None:
                lost_at = now
                logger.warning("%s; asking again for %.0f s", error, patience_s)
            elif now - lost_at >= patience_s:
                raise LostError(f"{error}; it was asked for {now - lost_at:.0f} s") from error
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        clock.sleep(pause_s)


def exit_code(details: JobDetails) -> int:
    """The exit code of a job that is over, as the job itself left it.

    A job that a signal ended has 128 and the signal's number; one that was stopped has 143; one
    that failed before it started has 2.
    """
    if details.driver_exit_code is not None:
        code = int(details.driver_exit_code)
        return code if code >= 0 else 128 - code
    status = str(getattr(details.status, "value", details.status))
    return {"SUCCEEDED": 0, "STOPPED": _STOPPED}.get(status, _NO_CODE)


def _show(head: Head, job_id: str, printer: _Printer) -> bool:
    """Write what comes over one connection; whether that was all until the end of the job."""
    printer.restart()
    try:
        return asyncio.run(_tail(head, job_id, printer))
    except HeadError as error:
        logger.debug("%s: no log over this connection: %s", job_id, error)
        return False


def _show_at_once(head: Head, job_id: str, printer: _Printer) -> None:
    """Write the log so far: some proxies let no lasting connection through.

    Raises:
        HeadLostError: If the head does not answer.
    """
    printer.restart()
    try:
        printer.add(head.log(job_id))
    except HeadLostError:
        raise
    except HeadError as error:  # the node that has it may be gone
        logger.warning("a part of the log is missing: %s", error)


async def _tail(head: Head, job_id: str, printer: _Printer) -> bool:
    """Write until the job is over; `False` if nothing came for a while."""
    texts = head.tail(job_id)
    coming: asyncio.Future[str] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(texts))
            done, _ = await asyncio.wait({coming}, timeout=_SILENCE_S)
            if not done:
                return False
            try:
                printer.add(coming.result())
            except StopAsyncIteration:
                return True
    finally:
        # However this ends, Ctrl-C included, nothing may be left waiting for the connection.
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait({coming})
        await texts.aclose()
