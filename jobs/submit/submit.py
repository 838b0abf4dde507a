"""Submit a job, or find it if it is already on the cluster."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.submit.head import PREFIX, Head, HeadLostError
from jobs.submit.package import write_package
from jobs.submit.request import Request, same_job
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""Seconds for which requests to an unresponsive head are retried, e.g. while it starts."""
_PAUSE_S = 2.0


@dataclass(frozen=True)
class Submitted:
    """A job on a cluster.

    Attributes:
        job_id: Id of the job on the cluster.
        attached: Whether the job was already running, so that none was submitted.
    """

    job_id: str
    attached: bool


def submit(
    request: Request,
    head: Head,
    *,
    files: Mapping[str, Path] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Submitted:
    """Start a job unless the same one is running.

    Two clients that submit the same job at the same time get the same job: ids are numbered per
    job, and a cluster accepts each id only once.

    Args:
        request: Description of the job.
        head: Head of the cluster.
        files: Files to upload, from `package_files`.
        clock: Clock for the pauses between attempts.

    Raises:
        HeadError: If the cluster does not accept the job, or has not answered for `PATIENCE_S`.
    """
    tried: str | None = None
    reported = ""
    end = clock.monotonic() + PATIENCE_S
    with tempfile.TemporaryDirectory(prefix="tango-submit-") as folder:
        package = Path(folder) / "package.zip"
        write_package(package, request.recipe, files or {})
        while True:
            try:
                jobs = head.jobs()
                if tried in {
                    job.submission_id for job in jobs
                }:  # submitted, but the response was lost
                    return Submitted(str(tried), attached=False)
                same = [job for job in jobs if same_job(job.metadata or {}, request.metadata)]
                living = [job for job in same if not job.status.is_terminal()]
                if living and not request.new:
                    return Submitted(str(living[-1].submission_id), attached=True)
                tried = next_id(request.digest, jobs)
                accepted = head.submit(
                    tried,
                    entrypoint=request.entrypoint,
                    package=str(package),
                    runtime_env=request.runtime_env,
                    metadata=request.metadata,
                    resources=request.resources,
                )
                if accepted:
                    return Submitted(tried, attached=False)
                tried = None
            except HeadLostError as error:
                if clock.monotonic() >= end:
                    raise
                if str(error) != reported:
                    logger.warning("%s; retrying for up to %.0f s", error, PATIENCE_S)
                reported = str(error)
            clock.sleep(_PAUSE_S)


def next_id(digest: str, jobs: Iterable[JobDetails]) -> str:
    """The next unused id `tango-<digest>-<number>` on the cluster."""
    beginning = f"{PREFIX}{digest[:10]}-"
    numbers = [str(job.submission_id).removeprefix(beginning) for job in jobs]
    return f"{beginning}{max((int(n) for n in numbers if n.isdecimal()), default=0) + 1}"
