"""Send a job, or find it where it runs already."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.submit.head import PREFIX, Head, HeadError
from jobs.submit.package import write_package
from jobs.submit.request import Request, same_job

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_ATTEMPTS = 10


@dataclass(frozen=True)
class Submitted:
    """A job on a cluster.

    Attributes:
        job_id: Its id there.
        attached: Whether it ran already, so that nothing was sent.
    """

    job_id: str
    attached: bool


def submit(
    request: Request,
    head: Head,
    *,
    working_dir: Path | None = None,
    with_code: bool = False,
    pack: Callable[..., int] = write_package,
) -> Submitted:
    """Start a job unless the same one is at work.

    Two clients that send the same job at the same time get one job: ids are counted per job, and a
    cluster accepts each id once.

    Args:
        request: What to run.
        head: Of the cluster.
        working_dir: Directory to send along.
        with_code: Whether to send this installation along.
        pack: Writes the package.

    Raises:
        PackageError: If the directory cannot be packed.
        HeadError: If the cluster does not accept the job.
    """
    with tempfile.TemporaryDirectory(prefix="tango-submit-") as folder:
        package = Path(folder) / "package.zip"
        pack(package, request.recipe, working_dir=working_dir, with_code=with_code)
        for _ in range(_ATTEMPTS):
            jobs = head.jobs()
            same = [job for job in jobs if same_job(job.metadata or {}, request.metadata)]
            living = [job for job in same if not job.status.is_terminal()]
            if living and not request.new:
                return Submitted(str(living[-1].submission_id), attached=True)
            job_id = next_id(request.digest, jobs)
            if head.submit(
                job_id,
                entrypoint=request.entrypoint,
                package=str(package),
                runtime_env=request.runtime_env,
                metadata=request.metadata,
                resources=request.resources.arguments(),
            ):
                return Submitted(job_id, attached=False)
    raise HeadError(f"{head.url} has taken every id of this job meanwhile; try again")


def next_id(digest: str, jobs: Iterable[JobDetails]) -> str:
    """`tango-<digest>-<number>`, one above those that the cluster has had."""
    beginning = f"{PREFIX}{digest[:10]}-"
    numbers = [str(job.submission_id).removeprefix(beginning) for job in jobs]
    return f"{beginning}{max((int(n) for n in numbers if n.isdigit()), default=0) + 1}"
