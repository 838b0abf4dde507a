"""Follow the log of a job on a cluster, and format jobs as tables, lines and JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jobs.report.formatting import Table
from jobs.submit.head import Head, HeadError, HeadLostError
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

logger = logging.getLogger(__name__)

PATIENCE_S = 120.0
"""Seconds without an answer from the head after which `follow` gives up."""
_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 15.0
_STOPPED, _NO_CODE = 143, 2
_HEADER = ("job", "status", "exit", "command", "recipe", "user", "started", "took")


class LostError(HeadLostError):
    """The head did not answer for longer than `PATIENCE_S`; the job may still run."""


def follow(
    head: Head, job_id: str, write: Callable[[str], None], *, clock: Clock = SYSTEM_CLOCK
) -> JobDetails:
    """Write the log of a job as it grows, and return when the job has ended.

    Args:
        head: Head of the cluster.
        job_id: Id of the job.
        write: Called with each new part of the log.
        clock: Clock for the pauses.

    Returns:
        Details of the ended job.

    Raises:
        LostError: If the head did not answer for `PATIENCE_S`.
        HeadError: If the cluster does not know the job.
    """
    written, pause_s, lost_at = 0, _PAUSE_S, None
    while True:
        try:
            details = head.details(job_id)  # before the log, so that the last log is complete
            try:
                log = head.log(job_id)
            except HeadLostError:
                raise
            except HeadError as error:  # the node that stores the log may be lost
                logger.debug("%s: no log: %s", job_id, error)
                log = ""
            if len(log) > written:
                write(log[written:])
                written = len(log)
            pause_s, lost_at = _PAUSE_S, None
            if details.status.is_terminal():
                return details
        except HeadLostError as error:
            now = clock.monotonic()
            if lost_at is None:
                lost_at = now
                logger.warning("%s; retrying for %.0f s", error, PATIENCE_S)
            elif now - lost_at >= PATIENCE_S:
                raise LostError(f"{error}; gave up after {now - lost_at:.0f} s") from error
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        clock.sleep(pause_s)


def exit_code(details: JobDetails) -> int:
    """The exit code of an ended job.

    It is that of the job's process; 128 plus the signal number if a signal ended it; 143 if the job
    was stopped; 2 if it failed before it started.
    """
    if details.driver_exit_code is not None:
        code = int(details.driver_exit_code)
        return code if code >= 0 else 128 - code
    status = str(getattr(details.status, "value", details.status))
    return {"SUCCEEDED": 0, "STOPPED": _STOPPED}.get(status, _NO_CODE)


def as_plain(job: JobDetails) -> dict[str, Any]:
    """Convert a job to plain data for `--json`; times are ISO 8601 in UTC, durations in seconds."""
    about = job.metadata or {}
    start, end = (
        at and datetime.fromtimestamp(at / 1000, UTC) for at in (job.start_time, job.end_time)
    )
    return {
        "id": job.submission_id,
        "status": str(job.status.value),
        "exit_code": exit_code(job) if job.status.is_terminal() else None,
        **{
            name: about.get(f"tango_{name}")
            for name in ("command", "recipe", "user", "version", "digest")
        },
        "started_at": start and start.isoformat(timespec="seconds"),
        "ended_at": end and end.isoformat(timespec="seconds"),
        "seconds": start and round(((end or datetime.now(UTC)) - start).total_seconds(), 1),
        "entrypoint": job.entrypoint,
    }


def table(jobs: Sequence[JobDetails]) -> str:
    """Format jobs as a table with one line per job."""
    rows = []
    for plain in map(as_plain, jobs):
        started, seconds = plain["started_at"], plain["seconds"]
        fields = [
            plain[name] for name in ("id", "status", "exit_code", "command", "recipe", "user")
        ]
        fields.append(started and f"{datetime.fromisoformat(started).astimezone():%Y-%m-%d %H:%M}")
        fields.append(seconds if seconds is None else f"{seconds:.0f} s")
        rows.append(tuple("-" if field is None else str(field) for field in fields))
    return "\n".join(Table(_HEADER, rows).plain(right={"exit", "took"}))


def lines(job: JobDetails) -> str:
    """Format the details of one job, one per line."""
    plain = as_plain(job)
    message = " ".join((job.message or "").split())
    plain["message"] = message.partition(", last available logs")[0][:500]
    width = max(map(len, plain)) + 1
    return "\n".join(
        f"{name.replace('_', ' ') + ':':<{width}} {'-' if value is None else value}"
        for name, value in plain.items()
    )


def as_json(jobs: Sequence[JobDetails]) -> str:
    """Format jobs as a JSON list."""
    return json.dumps([as_plain(job) for job in jobs], indent=2)
