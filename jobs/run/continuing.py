"""`--continue`: find the run that the same job has left unfinished, and wait until it is free.

A scheduler that starts a job again, or a user who submits it again, knows no run directory. Every
run therefore keeps the digest of its job (`config.identity`), and this looks for it.
"""

from __future__ import annotations

import logging

from jobs.config.identity import job_digest
from jobs.config.recipe import Job
from jobs.results.facts import FACTS_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.directories import DIGEST_FILE
from jobs.run.locations import OpenStorage
from pipeline.clock import SYSTEM_CLOCK, Clock
from pipeline.lease import EXPIRES_S, RENEWED_EVERY_S, Holder, Lease, LeaseError
from pipeline.remote.urls import Place
from pipeline.storage import Storage

_ASKED_EVERY_S = 2.0

logger = logging.getLogger(__name__)


def unfinished_run(
    job: Job, output: Place, *, open_storage: OpenStorage = Storage.at
) -> Place | None:
    """The newest unfinished run of a job, or `None`.

    A run is unfinished until its summary is written. Runs of `tango precompute` do not count: they
    hold no answers, and their work is in the cache. Nor do runs of releases that kept no digest.

    Args:
        job: Resolved; pools, executor and limits of time do not matter.
        output: Directory of all runs.
        open_storage: Opens directories.
    """
    digest = job_digest(job)
    # Names begin with the time, so the last one is the newest.
    for name in reversed(open_storage(output).folders()):
        storage = open_storage(output / name)
        if not storage.exists(DIGEST_FILE):
            continue
        if storage.read(DIGEST_FILE).decode().strip() != digest:
            continue
        if not (storage.exists(FACTS_FILE) and storage.exists(SUMMARY_FILE)):
            logger.info("continuing %s, the newest unfinished run of this job", output / name)
            return output / name
    logger.info("no unfinished run of this job in %s; a new one starts", output)
    return None


class PatientLease:
    """A lease that waits for the one of a dead driver to expire, instead of refusing at once.

    A scheduler starts the next attempt within seconds, often on another machine, where nothing but
    time says that the driver before is dead.

    Args:
        lease: Of the run.
        clock: Measures the wait.
        patience_s: Seconds to wait; the lease of a dead driver has expired by then.
    """

    def __init__(
        self,
        lease: Lease,
        clock: Clock = SYSTEM_CLOCK,
        patience_s: float = EXPIRES_S + RENEWED_EVERY_S,
    ) -> None:
        self._lease = lease
        self._clock = clock
        self._patience_s = patience_s

    def take(self, *, steal: bool = False) -> None:
        """See `Lease`; raises only if a driver still has it at the end of the wait."""
        started = self._clock.monotonic()
        said = False
        while True:
            try:
                return self._lease.take(steal=steal)
            except LeaseError as error:
                if self._clock.monotonic() - started >= self._patience_s:
                    raise
                if not said:
                    logger.info("waiting for up to %.0f s: %s", self._patience_s, error)
                    said = True
                self._clock.sleep(_ASKED_EVERY_S)

    def renew(self) -> None:
        """See `Lease`."""
        self._lease.renew()

    def release(self) -> None:
        """See `Lease`."""
        self._lease.release()

    def living(self) -> Holder | None:
        """See `Lease`."""
        return self._lease.living()
