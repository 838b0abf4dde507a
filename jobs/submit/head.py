"""Client of a Ray cluster's head, through Ray's Jobs API over HTTP."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from jobs import exit_codes
from jobs.report.formatting import Table
from jobs.submit.request import Request, write_package
from pipeline.errors import ClusterError
from pipeline.executors.cluster import raise_if_unreachable
from pipeline.redaction import redacted
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from tango_core.errors import InputError

T = TypeVar("T")

logger = logging.getLogger(__name__)

PREFIX = "tango-"
SUBMIT_PATIENCE_S, FOLLOW_PATIENCE_S = 60.0, 120.0
"""Seconds for which requests to a head that does not answer are repeated."""
_PAUSE_S = 2.0
_TIMEOUT_S = 60.0
_PORT = 8265
_DASHBOARD = f"give the head's dashboard, by default http://head:{_PORT}"
_RAY_VARIABLES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


class HeadError(InputError):
    """The head refuses a request, or the address is not a Ray head; the message is one line."""


class HeadLostError(HeadError):
    """The head does not answer; retrying may help."""


class _Client(JobSubmissionClient):  # type: ignore[misc]
    """Ray's client with a timeout; by default it waits forever."""

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", _TIMEOUT_S)
        response: requests.Response = super()._do_request(method, endpoint, **options)
        # Responses of a proxy whose head is down, and of a head that is still starting.
        is_starting = "No available agent" in response.text[:200]
        if response.status_code in (502, 503, 504) or is_starting:
            raise requests.ConnectionError(f"HTTP status {response.status_code}")
        return response


def dashboard_url(address: str | None) -> str:
    """The URL of the head's dashboard.

    The default port is 8265, as in Ray's documentation (Ray's client uses port 80 instead).
    Addresses with https or a path belong to a proxy and are returned unchanged.

    Args:
        address: `http(s)://host[:port]` or `host[:port]`; `None` for the one in `RAY_ADDRESS`.

    Raises:
        HeadError: If no address is given, or it is not an HTTP address.
    """
    given = address or os.environ.get("RAY_ADDRESS")
    if not given:
        raise HeadError(f"--address is missing; {_DASHBOARD}")
    url = (given if "://" in given else f"http://{given}").rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise HeadError(
            f"--address {redacted(given)} is not the address of a dashboard; jobs are submitted "
            f"over HTTP: http://head:{_PORT}"
        )
    is_host = re.fullmatch(r"http://([^/@]*@)?(\[[^/]*\]|[^:/?]+)", url)
    return f"{url}:{_PORT}" if is_host else url


class Head:
    """Client for the jobs of one cluster.

    Args:
        address: See `dashboard_url`.
        clock: Clock for the pauses between attempts.

    Attributes:
        url: URL of the dashboard without credentials, for display.

    Raises:
        HeadError: If no Ray dashboard answers there.
    """

    def __init__(self, address: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        url = dashboard_url(address)
        self.url = redacted(url)
        for name in ("job.sdk", "dashboard_sdk"):  # these loggers set their own levels
            logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.ERROR)
        # Ray prefers these variables to an explicit address.
        hidden = {name: os.environ.pop(name) for name in _RAY_VARIABLES if name in os.environ}
        try:
            raise_if_unreachable(url)
            self._client: _Client = self._call(_Client, url)
        except (ClusterError, HeadError) as error:  # often the port is wrong or missing
            raise type(error)(f"{str(error).rstrip('.')}; {_DASHBOARD}") from error
        finally:
            os.environ.update(hidden)

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of Ray's `JobSubmissionClient`.

        Raises:
            HeadError: If the head refuses the request or does not answer.
        """
        return self._call(getattr(self._client, method), *arguments, **keywords)

    def _call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Send a request; raise its errors as `HeadError` with a one-line message."""
        try:
            return function(*arguments, **keywords)
        except AuthenticationError as error:
            raise HeadError(
                f"{self.url} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or "
                f"RAY_AUTH_TOKEN_PATH ({_short(error)})"
            ) from error
        except OSError as error:  # base class of all errors of `requests`
            raise HeadLostError(f"{self.url} does not answer: {_short(error)}") from error
        except (RuntimeError, TypeError, KeyError) as error:
            raise HeadError(f"{self.url} refuses the request: {_short(error)}") from error

    def jobs(self) -> list[JobDetails]:
        """The jobs that `tango submit` has sent to this cluster, the oldest first."""
        ours = [job for job in self.ask("list_jobs") if (job.metadata or {}).get("tango_digest")]
        return sorted(ours, key=lambda job: (job.start_time or 0, job.submission_id))

    def find(self, job_id: str) -> str:
        """The full id of a job given by its id or a prefix of it.

        Raises:
            HeadError: If no job or several jobs match.
        """
        ids = [str(job.submission_id) for job in self.jobs()]
        found = [one for one in ids if one.startswith((job_id, PREFIX + job_id))]
        if job_id in ids or len(found) == 1:
            return job_id if job_id in ids else found[0]
        what = f"is a prefix of {len(found)} jobs" if found else "is not a job"
        known = ", ".join((found or ids)[-5:]) or "none"
        raise HeadError(f"{job_id} {what} on {self.url}; jobs: {known} (tango jobs list)")

    def submit(self, request: Request, files: Mapping[str, Path]) -> tuple[str, bool]:
        """Start a job unless the same one is running.

        Args:
            request: Description of the job.
            files: Files to upload, from `package_files`.

        Returns:
            Id of the job on the cluster, and whether it was started by this call.

        Raises:
            HeadError: If the cluster does not accept the job, or has not answered for
                `SUBMIT_PATIENCE_S`.
        """
        jobs = self._retried(self.jobs, SUBMIT_PATIENCE_S)
        running = [job for job in jobs if not job.status.is_terminal()]
        same = [job for job in running if request.is_same(job.metadata or {})]
        if same and not request.new:
            return str(same[-1].submission_id), False
        beginning = f"{PREFIX}{request.digest[:10]}-"
        numbers = [str(job.submission_id).removeprefix(beginning) for job in jobs]
        number = 1 + max((int(one) for one in numbers if one.isdecimal()), default=0)
        job_id = f"{beginning}{number}"

        def send() -> None:
            try:
                self.ask(
                    "submit_job",
                    entrypoint=request.entrypoint,
                    submission_id=job_id,
                    runtime_env={**request.runtime_env, "working_dir": str(package)},
                    metadata=request.metadata,
                )
            except HeadError as error:  # of an earlier try, whose response was lost
                if "already exists" not in str(error):
                    raise

        with tempfile.TemporaryDirectory(prefix="tango-submit-") as folder:
            package = Path(folder) / "package.zip"
            write_package(package, request.recipe, files)
            self._retried(send, SUBMIT_PATIENCE_S)
        return job_id, True

    def follow(self, job_id: str, write: Callable[[str], None]) -> JobDetails:
        """Write the log of a job as it grows, and return its details when the job has ended.

        Args:
            job_id: Id of the job.
            write: Called with each new part of the log.

        Raises:
            HeadLostError: If the head did not answer for `FOLLOW_PATIENCE_S`.
            HeadError: If the cluster does not know the job.
        """

        def read() -> tuple[JobDetails, str]:
            # The details before the log, so that the last log is complete.
            details = self.ask("get_job_info", job_id)
            try:
                return details, str(self.ask("get_job_logs", job_id))
            except HeadLostError:
                raise
            except HeadError:  # the node that stores the log is lost
                return details, ""

        written = 0
        while True:
            details, log = self._retried(read, FOLLOW_PATIENCE_S)
            if len(log) > written:
                write(log[written:])
                written = len(log)
            if details.status.is_terminal():
                return details
            self._clock.sleep(_PAUSE_S)

    def _retried(self, call: Callable[[], T], patience_s: float) -> T:
        """Call a function until the head answers, at most for `patience_s`."""
        end = None
        while True:
            try:
                return call()
            except HeadLostError as error:
                now = self._clock.monotonic()
                if end is None:
                    end = now + patience_s
                    logger.warning("%s; retrying for %.0f s", error, patience_s)
                if now >= end:
                    raise
                self._clock.sleep(_PAUSE_S)


def _short(error: BaseException) -> str:
    """The last line of an error, which in Ray's errors may be a whole traceback."""
    lines = redacted(str(error).replace("\\n", "\n")).strip().splitlines()
    return lines[-1].strip()[:300] if lines else type(error).__name__


def exit_code(details: JobDetails) -> int:
    """The exit code of an ended job.

    It is that of the job's process; 128 plus the signal number if a signal ended it; 143 if the job
    was stopped; 2 if it failed before it started.
    """
    if details.driver_exit_code is not None:
        code = int(details.driver_exit_code)
        return code if code >= 0 else 128 - code
    ended = {"SUCCEEDED": exit_codes.OK, "STOPPED": 143}
    return ended.get(str(details.status.value), exit_codes.MISTAKE)


def as_plain(job: JobDetails) -> dict[str, Any]:
    """Convert a job to plain data for `--json`; times are ISO 8601 in UTC, durations in seconds."""
    about = job.metadata or {}
    start, end = (
        at and datetime.fromtimestamp(at / 1000, UTC) for at in (job.start_time, job.end_time)
    )
    names = ("command", "recipe", "user", "version", "digest")
    return {
        "id": job.submission_id,
        "status": str(job.status.value),
        "exit_code": exit_code(job) if job.status.is_terminal() else None,
        **{name: about.get(f"tango_{name}") for name in names},
        "started_at": start and start.isoformat(timespec="seconds"),
        "ended_at": end and end.isoformat(timespec="seconds"),
        "seconds": start and round(((end or datetime.now(UTC)) - start).total_seconds(), 1),
        "entrypoint": job.entrypoint,
    }


# Heading of the table -> key of `as_plain`.
_COLUMNS = {
    **{"job": "id", "status": "status", "exit": "exit_code", "command": "command"},
    **{"recipe": "recipe", "user": "user", "started": "started_at", "took": "seconds"},
}


def table(jobs: Sequence[JobDetails]) -> str:
    """Format jobs as a table with one line per job."""
    rows = [[_text(plain[key]) for key in _COLUMNS.values()] for plain in map(as_plain, jobs)]
    return "\n".join(Table(list(_COLUMNS), rows).plain(right={"exit", "took"}))


def lines(job: JobDetails) -> str:
    """Format the details of one job, one per line."""
    plain = {**as_plain(job), "message": " ".join((job.message or "").split())[:500]}
    names = [name.replace("_", " ") + ":" for name in plain]
    return "\n".join(f"{n:<12} {_text(v)}" for n, v in zip(names, plain.values(), strict=True))


def as_json(jobs: Sequence[JobDetails]) -> str:
    """Format jobs as a JSON list."""
    return json.dumps([as_plain(job) for job in jobs], indent=2)


def _text(value: object) -> str:
    return "-" if value is None else str(value)
