"""`--continue`: find the run that the same job has left unfinished.

A scheduler that starts a job again, or a user who submits it again, knows no run directory. Every
run therefore keeps the digest of its job (`config.identity`), and this looks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from jobs.config.identity import job_digest
from jobs.config.recipe import Job
from jobs.results.facts import FACTS_FILE, FAILURES_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.directories import DIGEST_FILE
from jobs.run.locations import OpenStorage
from pipeline.storage import Storage
from pipeline.storage.seal import DamagedFileError, read_sealed
from pipeline.storage.urls import Place

_STAMP = len("20260101-120000")
_CLIP = ["benchmark", "video_id", "path"]

logger = logging.getLogger(__name__)


def unfinished_run(
    job: Job, output: Place, *, open_storage: OpenStorage = Storage.at
) -> Place | None:
    """The newest unfinished run of a job, or `None`.

    A run is finished when its summary is written and no more clips failed than `max_failures`
    allows: where more did, they are tried again. Runs of `tango precompute` do not count: they
    hold no answers, and their work is in the cache. Nor do runs of releases that kept no digest.

    Args:
        job: Resolved; pools, executor and limits of time do not matter.
        output: Directory of all runs.
        open_storage: Opens directories.
    """
    for name in _runs_of(job, output, open_storage):
        if not _is_finished(open_storage(output / name), job):
            logger.info("continuing %s, the newest unfinished run of this job", output / name)
            return output / name
    logger.info("no unfinished run of this job in %s; a new one starts", output)
    return None


def finished_of_round(
    jobs: Sequence[Job], output: Place, *, open_storage: OpenStorage = Storage.at
) -> dict[int, Place]:
    """What an interrupted sweep of several jobs has finished: run directories by number of the job.

    The jobs of a sweep run one after the other, so runs older than the newest one of the first job
    are of an earlier sweep. After a sweep in which all are finished the next one starts from
    nothing.

    Args:
        jobs: In their order; see `unfinished_run`.
        output: Directory of all runs.
        open_storage: Opens directories.
    """
    newest = [next(_runs_of(job, output, open_storage), None) for job in jobs]
    begun = newest[0]
    found = {
        number: output / name
        for number, (job, name) in enumerate(zip(jobs, newest, strict=True))
        if name is not None
        and begun is not None
        and name[:_STAMP] >= begun[:_STAMP]
        and _is_finished(open_storage(output / name), job)
    }
    if len(found) == len(jobs):
        return {}
    for run_dir in found.values():
        logger.info("%s is finished, and is not run again", run_dir)
    return found


def _runs_of(job: Job, output: Place, open_storage: OpenStorage) -> Iterator[str]:
    """Names of the runs of a job, the newest first: names begin with the time."""
    digest = job_digest(job)
    for name in reversed(open_storage(output).folders()):
        storage = open_storage(output / name)
        if storage.exists(DIGEST_FILE) and storage.read(DIGEST_FILE).decode().strip() == digest:
            yield name


def _is_finished(storage: Storage, job: Job) -> bool:
    """Whether nothing of a run is left to do."""
    if not (storage.exists(FACTS_FILE) and storage.exists(SUMMARY_FILE)):
        return False
    if not storage.exists(FAILURES_FILE):
        return True
    try:
        failures = read_sealed(storage, FAILURES_FILE, must=False).table
    except DamagedFileError:
        return False
    clips = {tuple(row.values()) for row in failures.select(_CLIP).to_pylist()}
    return len(clips) <= job.max_failures
