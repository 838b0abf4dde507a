"""Run one job: plan it, execute it, and write answers, failures and facts to the run directory.

All results are written before summary, report and upload begin, so an error there loses no work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Protocol

from rich.console import Console

from jobs.config.recipe import Job
from jobs.results.facts import FACTS_FILE, FAILURES_FILE
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import BuiltJob, ShardCount, executor_of, make_plan, make_settings, pools_of
from jobs.run.locations import Locations
from jobs.run.outcome import FAILURE, JobResult, Kind, add_missing, facts_of_job
from jobs.run.progress import JobProgress
from jobs.run.run_dirs import claim, claim_caches
from pipeline.cache.folders import compact_cache, find_caches
from pipeline.executors.cluster import raise_if_unreachable
from pipeline.metrics import JobBoard
from pipeline.plan import Plan
from pipeline.progress.answers import AnswerWriter, Continued, read_asked, write_asked
from pipeline.rows import AnswerRow, Result, to_table
from pipeline.run import RunPlan, complete, run
from pipeline.runtime import stopping
from pipeline.runtime.background import iterate
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.settings import Settings
from pipeline.storage import Storage
from pipeline.storage.leases import Lease, held
from pipeline.storage.objects import insist, store_fault
from pipeline.storage.seal import DamagedFileError, write_sealed
from pipeline.storage.urls import Place
from tango_core.errors import UserError

logger = logging.getLogger(__name__)


def execute(
    job: Job,
    built: BuiltJob,
    kind: Kind,
    locations: Locations,
    run_dir: Place,
    console: Console,
    *,
    run_plan: RunPlan | None = None,
    clock: Clock = SYSTEM_CLOCK,
    observers: Sequence[Observer] = (),
    board: JobBoard | None = None,
) -> JobResult:
    """Run a job and write its answers, failures and facts to the run directory.

    A run directory that already holds answers is continued; its failed clips are retried.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        kind: The command.
        locations: Where the job reads and writes.
        run_dir: From `run_dirs`.
        console: Where the progress goes.
        run_plan: The executor; `None` for the one of the recipe.
        clock: For durations and dates, except for the latencies of single clips.
        observers: Receive start, results and end of the job, as the progress does.
        board: Where the stages of the recipe's executor report.

    Raises:
        LeaseError: If another driver works on the run, or takes it over with `--steal`.
    """
    if locations.address is not None and job.executor != "local":
        raise_if_unreachable(locations.address)
    storage = locations.open_storage(run_dir)
    caches = locations.open_storage(locations.cache_root)
    board = board or JobBoard()
    run_plan = run_plan or partial(run, board=board)
    observers = (JobProgress(console, clock), *observers)
    lease = Lease(storage, clock)
    with held(lease, steal=locations.steal, waits=locations.continues, clock=clock) as kept:
        writer = None
        if kind != "precompute":
            writer = AnswerWriter(storage.child("answers"), clock, kept.renew)
        claim(
            run_dir,
            job,
            open_storage=locations.open_storage,
            answers=writer is not None,
            recipe=locations.recipe,
        )
        continued = _continued(writer, job, built, storage) if writer else Continued()
        started_at, started = clock.now(), clock.monotonic()
        shards = ShardCount(job.shard)
        plan = make_plan(
            job,
            built,
            caches,
            answer=writer is not None,
            continued=continued,
            count=shards,
        )
        finished = continued.standing
        if writer:
            claim_caches(storage, run_dir, plan, continued=len(finished) > 0)
            _keep(writer, continued)
        settings = _settings(job, locations, plan)
        board.plan(plan)  # before the observers, which show its stages
        result = JobResult(len(plan.caches))
        if plan.clips.num_rows:  # there is work left, so the run no longer counts as finished
            for name in (FACTS_FILE, SUMMARY_FILE):
                if storage.exists(name):
                    storage.delete(name)

        def retried(write: Callable[[], object]) -> None:
            insist(write, str(run_dir), clock)

        if writer:
            retried(lambda: write_asked(plan.clips, storage))
        # Signals are handled between two clips, so that no clip's answers are written partially.
        with stopping.deferred(), ExitStack() as watched, _flushed(writer, clock):
            for observer in observers:
                observer.started(plan, len(finished))
                watched.callback(observer.stopped)
            for clip in iterate(lambda: complete(run_plan, plan, settings, clock)):
                kept.raise_if_lost()
                for observer in observers:
                    observer.result(clip)
                if writer:
                    _add(writer, clip.answers, clock)
                result.add(clip)
                for warning in clip.warnings or ():
                    logger.warning("%s: %s", clip.video_id, warning)
        retried(kept.renew)
        if writer:
            result.add_missing(add_missing(job, built, plan, writer))
        failures = to_table(result.failures, FAILURE)
        retried(lambda: write_sealed(failures, storage, FAILURES_FILE, run_dir.name))
        result.facts = facts_of_job(
            job,
            built,
            plan,
            run_id=run_dir.name,
            kind=kind,
            cache_root=locations.cache_root,
            started_at=started_at.isoformat(timespec="seconds"),
            # The wall time of a continued run does not measure its speed.
            wall_s=None if continued else clock.monotonic() - started,
            shards=shards.sizes(),
            num_answers=shards.num_questions * len(plan.methods) if writer else None,
            work=result.work(),
        )
        retried(lambda: result.facts.save(storage))
        stored = (plan.features.cache.name,) if plan.features else ()
        compact_if_remote(caches, (*stored, *plan.caches))
        return result


def _continued(writer: AnswerWriter, job: Job, built: BuiltJob, storage: Storage) -> Continued:
    """Clips finished by earlier attempts of a run, with the questions that they were asked."""
    cells = [name for name, _ in built.methods]
    done = writer.finished(cells, keep_damaged=job.decode.damaged == "keep")
    if not len(done):
        return Continued()
    try:
        return Continued(done, read_asked(storage))
    except DamagedFileError as error:
        logger.warning("%s; cannot check whether files or questions have changed since", error)
        return Continued(done)


def _keep(writer: AnswerWriter, continued: Continued) -> None:
    """Keep answers whose files and questions are unchanged; drop the others now.

    The questions of this attempt are recorded next, and the dropped answers would pass for theirs.
    """
    standing = continued.standing
    writer.keep(standing)
    if not continued:
        return
    logger.info("resuming: %d clips are finished", len(standing))
    if changed := len(continued) - len(standing):
        logger.warning(
            "the answers about %d clip(s) are dropped, because their files or questions have "
            "changed since",
            changed,
        )
        writer.drop_the_others()


def _settings(job: Job, locations: Locations, plan: Plan) -> Settings:
    """Choose executor and pools; log the choice and what the job will do."""
    from jobs.estimate.work import count  # loads pandas

    counts = count(plan, questions=False)
    logger.info(
        "%d clips for %d token cache(s): %d clips to decode and encode, %d from cache, %d of these "
        "from stored features, %d missing",
        *(counts.clips, len(plan.caches), counts.to_encode, counts.cached),
        *(counts.from_features, counts.without_file),
    )
    choice = executor_of(job, locations.address, counts.clips)
    assert choice is not None  # the clips have been counted
    if counts.clips:
        logger.info("executor %s: %s", choice.executor, choice.reason)
    pools = pools_of(job, plan, locations.output)
    return make_settings(job, locations.address, choice.executor, pools)


@contextmanager
def _flushed(writer: AnswerWriter | None, clock: Clock) -> Iterator[None]:
    """Flush pending answers when the block ends, also on an error."""
    try:
        yield
    except BaseException:
        if writer:
            with suppress(OSError):  # report the error that ended the block instead
                writer.flush()
        raise
    if writer:
        insist(writer.flush, writer.storage.root, clock)


def _add(writer: AnswerWriter, answers: Sequence[AnswerRow], clock: Clock) -> None:
    """Store a clip's answers; wait while the disk is full."""
    try:
        writer.add(answers)
    except Exception as error:
        if store_fault(error, writer.storage.root) is None:
            raise
        insist(writer.flush, writer.storage.root, clock)


# Compact caches with at least this many single clips; fewer are listed in one request anyway.
AT_LEAST = 500


def compact_if_remote(root: Storage, names: Iterable[str]) -> None:
    """Merge the single clips of a job's caches into shards if the caches are in an object store.

    Errors are logged as warnings, because the uncompacted clips stay usable.

    Args:
        root: Storage of the caches.
        names: Names of the job's caches.
    """
    if root.store is None:
        return
    try:
        for folder in find_caches(root, list(names)):
            if folder.cache is not None and len(folder.singles) >= AT_LEAST:
                problems = [problem for _, problem in compact_cache(folder) if problem]
                logger.info("%s: compacted, %d clips left out", folder.name, len(problems))
    except (OSError, UserError) as error:
        logger.warning("%s: not compacted (%s); try `tango cache compact`", root.location, error)


class Observer(Protocol):
    """Receives the events of a job; must be quick and must not raise."""

    def started(self, plan: Plan, finished: int) -> None:
        """Called when the job starts.

        Args:
            plan: Plan of the job.
            finished: Number of clips that earlier attempts finished.
        """
        ...

    def result(self, row: Result) -> None:
        """Called for every finished clip (`rows.Result`)."""
        ...

    def stopped(self) -> None:
        """Called when the job has ended, also on an error."""
        ...
