"""Jobs of a cluster as tables and as lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jobs.report.formatting import Table
from jobs.submit.follow import exit_code

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_HEADER = ("job", "status", "exit", "command", "recipe", "user", "started", "took")
_RIGHT_ALIGNED = {"exit", "took"}
_DASH = "-"


def as_plain(job: JobDetails) -> dict[str, Any]:
    """A job as plain data, for `--json`; times are ISO 8601 in UTC, durations seconds."""
    about = job.metadata or {}
    return {
        "id": job.submission_id,
        "status": str(job.status.value),
        "exit_code": exit_code(job) if job.status.is_terminal() else None,
        **{
            name: about.get(f"tango_{name}")
            for name in ("command", "recipe", "user", "version", "digest")
        },
        "started_at": _iso(job.start_time),
        "ended_at": _iso(job.end_time),
        "seconds": _seconds(job),
        "entrypoint": job.entrypoint,
    }


def table(jobs: Sequence[JobDetails]) -> str:
    """One line per job, the newest last."""
    return "\n".join(
        Table(_HEADER, [_row(as_plain(job)) for job in jobs]).plain(right=_RIGHT_ALIGNED)
    )


def lines(job: JobDetails) -> str:
    """All about one job, a line each."""
    plain = as_plain(job)
    message = " ".join((job.message or "").split())
    plain["message"] = message.partition(", last available logs")[0][:500]
    width = max(map(len, plain)) + 1
    return "\n".join(
        f"{name.replace('_', ' ') + ':':<{width}} {_DASH if value is None else value}"
        for name, value in plain.items()
    )


def as_json(jobs: Sequence[JobDetails]) -> str:
    """A list of jobs for scripts."""
    return json.dumps([as_plain(job) for job in jobs], indent=2)


def _row(plain: dict[str, Any]) -> tuple[str, ...]:
    """The fields of one line."""
    started, seconds = plain["started_at"], plain["seconds"]
    fields = (
        plain["id"],
        plain["status"],
        plain["exit_code"],
        plain["command"],
        plain["recipe"],
        plain["user"],
        started and f"{datetime.fromisoformat(started).astimezone():%Y-%m-%d %H:%M}",
        None if seconds is None else f"{seconds:.0f} s",
    )
    return tuple(_DASH if field is None else str(field) for field in fields)


def _iso(milliseconds: int | None) -> str | None:
    """A Unix time of Ray."""
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def _seconds(job: JobDetails) -> float | None:
    """From the start to the end, or until now."""
    if not job.start_time:
        return None
    end = job.end_time / 1000 if job.end_time else datetime.now(UTC).timestamp()
    return float(round(end - job.start_time / 1000, 1))
