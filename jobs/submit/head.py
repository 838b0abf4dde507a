"""Client of a Ray cluster's head, through Ray's Jobs API over HTTP."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from pipeline.errors import ClusterError
from pipeline.executors.cluster import raise_if_unreachable
from pipeline.redaction import redacted
from tango_core.errors import InputError

logger = logging.getLogger(__name__)

PREFIX = "tango-"
_TIMEOUT_S = 60.0
_NO_AGENT = "No available agent"
_NO_VERSION = "Version check returned 404"
_PORT = 8265
_DASHBOARD = f"give the head's dashboard, by default http://head:{_PORT}"
# Ray prefers these variables to an explicit address; we hide them so that --address wins.
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
        if response.status_code in (502, 503, 504) or _NO_AGENT in response.text[:200]:
            reason = f" ({text})" if (text := _short(response.text)) else ""
            raise requests.ConnectionError(f"HTTP status {response.status_code}{reason}")
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
    url = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(url)
        port = parts.port
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
    except ValueError:  # invalid port or IPv6 address
        is_http = False
    if not is_http:
        raise HeadError(
            f"--address {redacted(given)} is not the address of a dashboard; jobs are submitted "
            f"over HTTP: http://head:{_PORT}"
        )
    if parts.scheme != "http" or port is not None or parts.path.strip("/") or parts.query:
        return url.rstrip("/")
    found = f"http://{parts.netloc.rstrip(':')}:{_PORT}"
    logger.info("no port given: using %s, the default of Ray's dashboard", redacted(found))
    return found


class Head:
    """Client for the jobs of one cluster.

    Args:
        address: See `dashboard_url`.

    Attributes:
        url: URL of the dashboard without credentials, for display.

    Raises:
        HeadError: If no Ray dashboard answers there.
    """

    def __init__(self, address: str | None) -> None:
        url = dashboard_url(address)
        self.url = redacted(url)
        try:
            raise_if_unreachable(url)
        except ClusterError as error:
            raise ClusterError(
                f"{error}; {_DASHBOARD}, or start a cluster there: `ray start --head`"
            ) from error
        for name in ("job.sdk", "dashboard_sdk"):  # these loggers set their own levels
            logging.getLogger(f"ray.dashboard.modules.{name}").setLevel(logging.ERROR)
        try:
            with self._errors_as_head_errors(), _without_ray_variables():
                self._client = _Client(url)
        except HeadLostError as error:  # often the port is wrong or missing
            raise HeadLostError(f"{str(error).rstrip('.')}; {_DASHBOARD}") from error

    def submit(
        self,
        job_id: str,
        *,
        entrypoint: str,
        package: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
        resources: Mapping[str, Any],
    ) -> bool:
        """Start a job.

        Args:
            job_id: New id on this cluster.
            entrypoint: Shell command.
            package: Zip file that becomes the working directory.
            runtime_env: Ray's runtime environment without the working directory.
            metadata: Metadata to store with the job.
            resources: Further arguments of Ray's `submit_job`.

        Returns:
            Whether the job was started; `False` if the id exists already.

        Raises:
            HeadError: If the cluster does not accept it.
        """
        try:
            with self._errors_as_head_errors():
                self._client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=job_id,
                    runtime_env={**runtime_env, "working_dir": package},
                    metadata=dict(metadata),
                    **resources,
                )
        except HeadLostError:
            raise
        except HeadError as error:
            if "already exists" in str(error):
                return False
            raise
        return True

    def jobs(self) -> list[JobDetails]:
        """The jobs that `tango submit` has sent to this cluster, the oldest first."""
        with self._errors_as_head_errors():
            found = self._client.list_jobs()
        ours = [job for job in found if (job.metadata or {}).get("tango_digest")]
        return sorted(ours, key=lambda job: (job.start_time or 0, job.submission_id))

    def find(self, job_id: str) -> str:
        """The full id of a job given by its id or a prefix of it.

        Raises:
            HeadError: If no job or several jobs match.
        """
        ids = [job.submission_id for job in self.jobs()]
        if job_id in ids:
            return job_id
        found = [one for one in ids if one.startswith((job_id, PREFIX + job_id))]
        if len(found) == 1:
            return str(found[0])
        what = f"is a prefix of {len(found)} jobs" if found else "is not a job"
        known = ", ".join((found or ids)[-5:]) or "none"
        raise HeadError(f"{job_id} {what} on {self.url}; jobs: {known} (tango jobs list)")

    def details(self, job_id: str) -> JobDetails:
        """Status, exit code and times of a job."""
        with self._errors_as_head_errors():
            return self._client.get_job_info(job_id)

    def log(self, job_id: str) -> str:
        """The log of a job so far."""
        with self._errors_as_head_errors():
            return str(self._client.get_job_logs(job_id))

    def stop(self, job_id: str) -> bool:
        """Stop a job (SIGTERM, then SIGKILL); returns whether it was running."""
        with self._errors_as_head_errors():
            return bool(self._client.stop_job(job_id))

    @contextmanager
    def _errors_as_head_errors(self) -> Iterator[None]:
        """Convert errors of a request into `HeadError` with a one-line message."""
        try:
            yield
        except AuthenticationError as error:
            raise HeadError(
                f"{self.url} requires a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or "
                f"RAY_AUTH_TOKEN_PATH ({_short(error)})"
            ) from error
        except (requests.JSONDecodeError, KeyError) as error:
            raise self._no_dashboard() from error
        except OSError as error:  # base class of all errors of `requests`
            raise HeadLostError(f"{self.url} does not answer: {_short(error)}") from error
        except TypeError as error:  # from Ray's validation of the runtime environment
            raise HeadError(f"--runtime-env is invalid: {_short(error)}") from error
        except RuntimeError as error:
            if _NO_VERSION in str(error):
                raise self._no_dashboard() from error
            raise HeadError(f"{self.url} refuses the request: {_short(error)}") from error

    def _no_dashboard(self) -> HeadError:
        """The error for a server that is not a Ray dashboard."""
        return HeadError(f"{self.url} answers, but is not a Ray dashboard; {_DASHBOARD}")


@contextmanager
def _without_ray_variables() -> Iterator[None]:
    """Hide Ray's variables while its client is created, so that it uses our address."""
    hidden = {name: os.environ.pop(name) for name in _RAY_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _short(error: BaseException | str) -> str:
    """Shorten an error to one line; of a traceback from Ray, keep the last line."""
    text = redacted(str(error).replace("\\n", "\n"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else "" if isinstance(error, str) else type(error).__name__
    first = lines[0] if lines else ""
    return (last if first.endswith("(most recent call last):") else " ".join(lines))[:300]
