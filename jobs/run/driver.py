"""Run one job: plan it, execute it, and write answers, failures and facts to the run directory.

All results are written before summary, report and upload begin, so an error there loses no work.
"""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
from rich.console import Console

from jobs.config.recipe import Job
from jobs.results.facts import FACTS_FILE, FAILURES_FILE, CellFacts, JobFacts, WorkCounts
from jobs.results.summary import SUMMARY_FILE
from jobs.run.build import (
    BuiltJob,
    ShardCount,
    device_name,
    executor_of,
    items_of,
    make_plan,
    make_settings,
)
from jobs.run.locations import Locations
from jobs.run.progress import JobProgress
from jobs.run.run_dirs import claim, claim_caches
from pipeline.cache.folders import compact_cache, find_caches
from pipeline.clips import DECODE_VIDEO, FAILED
from pipeline.executors.cluster import raise_if_unreachable
from pipeline.metrics import JobBoard
from pipeline.plan import Plan, PlannedMethod
from pipeline.progress.answers import AnswerWriter, Continued, read_asked, write_asked
from pipeline.redaction import redacted
from pipeline.rows import AnswerRow, Result, to_table
from pipeline.run import RunPlan, complete, run
from pipeline.runtime import stopping
from pipeline.runtime.background import iterate
from pipeline.runtime.clock import SYSTEM_CLOCK, Clock
from pipeline.settings import AutoPools, Settings
from pipeline.storage import Storage
from pipeline.storage.leases import Lease, held
from pipeline.storage.objects import insist, store_fault
from pipeline.storage.seal import DamagedFileError, write_sealed
from pipeline.storage.urls import Place
from tango_core.benchmarks import Benchmark
from tango_core.errors import UserError
from tango_core.ops.precision import float32_products

logger = logging.getLogger(__name__)

Kind = Literal["evaluate", "sweep", "precompute"]

FAILURE = pa.schema(
    [
        (name, pa.string())
        for name in ("benchmark", "video_id", "question_id", "cell", "path", "status", "error")
    ]
)


@dataclass
class JobResult:
    """Counts and failures of one attempt of a job, updated with every clip.

    Attributes:
        num_caches: Number of token caches in which every clip is looked up.
        facts: Facts of the run; set when it is finished.
        num_clips: Clips processed in this attempt.
        num_failed_clips: Number of these clips with any failure.
        num_decoded: Decoded clips.
        num_encoded: Encoded clips.
        num_hits: (clip, compressor) pairs found in the cache.
        num_computed: (clip, compressor) pairs computed.
        num_answered: Successful answers.
        num_missing: Planned answers that were missing in the run's files at the end, and for which
            failed rows were added.
        failures: Rows of `FAILURE`.
    """

    num_caches: int
    facts: JobFacts = field(init=False)
    num_clips: int = 0
    num_failed_clips: int = 0
    num_decoded: int = 0
    num_encoded: int = 0
    num_hits: int = 0
    num_computed: int = 0
    num_answered: int = 0
    num_missing: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count a finished clip (`rows.Result`)."""
        failed: Sequence[AnswerRow | Result] = [result]
        if result.status == "ok":
            failed = [answer for answer in result.answers if answer.status in FAILED]
        self._add_failures(failed, redacted(result.path))
        self.num_clips += 1
        self.num_failed_clips += result.has_failed
        is_read = result.decode_video_ms is not None and result.status != DECODE_VIDEO.failure
        self.num_decoded += is_read
        self.num_encoded += result.encode_ms is not None
        self.num_answered += sum(not answer.has_failed for answer in result.answers)
        if result.status == "ok":
            self.num_hits += self.num_caches - result.num_misses
            self.num_computed += result.num_computed

    def add_missing(self, answers: Sequence[AnswerRow]) -> None:
        """Count planned answers that are missing in the run's files."""
        self._add_failures(answers, None)
        self.num_missing += len(answers)

    def _add_failures(self, rows: Sequence[AnswerRow | Result], path: str | None) -> None:
        for row in rows:
            columns = {name: getattr(row, name, None) for name in FAILURE.names}
            self.failures.append({**columns, "path": path})


def add_missing(job: Job, built: BuiltJob, plan: Plan, writer: AnswerWriter) -> list[AnswerRow]:
    """Compare the written answers with the job, and add a failed row for each missing one.

    Without these rows the tables would count fewer questions and show no failure.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        plan: Plan of the job.
        writer: The writer; all answers have been flushed.

    Returns:
        The added rows.
    """
    planned = {method.name: method for method in plan.methods}
    missing = writer.missing(items_of(job, built), list(planned))
    if not missing:
        return []
    from pipeline.stages.answer import unanswered  # loads the language models' code

    why = "no answer was found at the end of the run; run again with --resume"
    rows = []
    for benchmark, item, cell, question in missing:
        clip, protocol = (benchmark, item.video_id), built.benchmarks[benchmark].protocol
        rows.append(unanswered(clip, planned[cell], question, protocol, why))
    first = rows[0]
    logger.warning(
        "%d planned answer(s) are missing and count as failed, e.g. of %s to question %s about %s; "
        "--resume retries them",
        *(len(rows), first.cell, first.question_id, first.video_id),
    )
    writer.add(rows)
    writer.flush()
    return rows


def facts_of_job(job: Job, built: BuiltJob, plan: Plan, **of_run: Any) -> JobFacts:
    """Collect the facts of a job.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        plan: Plan of the job.
        of_run: Fields of `JobFacts` that only the driver knows, such as the times.
    """
    model = built.model
    rules = [one.protocol.subtitles for one in built.benchmarks.values()]
    notes = [model.note, *(rule.note for rule in rules if rule is not None)]
    return JobFacts(
        model=model.name,
        cells=tuple(
            _facts_of_cell(benchmark, planned, model.llm.num_layers)
            for benchmark in built.benchmarks.values()
            for planned in plan.methods
        ),
        mode=job.mode,
        llm=model.llm,
        note="; ".join(note for note in notes if note),
        git_commit=git_commit(),
        caches=tuple(plan.caches),
        device=device_name(model.device),
        num_frames=model.frames.num_frames,
        checkpoint=model.digest,
        dtype=model.dtype,
        versions=versions(),
        float32_products=float32_products(),
        skipped=built.skipped,
        input_size=model.options.input_size(),
        features=plan.features.cache.name if plan.features else "",
        **of_run,
    )


def _facts_of_cell(benchmark: Benchmark, planned: PlannedMethod, num_layers: int) -> CellFacts:
    method = planned.method
    return CellFacts(
        name=planned.name,
        benchmark=benchmark.name,
        method=method.name,
        retention=planned.retention,
        options={key: value for key, value in method.options.items() if key != "retention"},
        layer_shares=method.pruner.layer_shares(num_layers) if method.pruner else None,
        protocol=benchmark.protocol.name,
        cache=planned.cache,
        reads_question=method.compressor.question_field is not None,
    )


_LIBRARIES = (
    *("tango-video", "ray", "torch", "transformers", "av", "decord"),
    *("pyarrow", "pandas", "mlflow", "numpy"),
)


def git_commit() -> str:
    """Commit of the code, or "" outside a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.check_output(
            command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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

        retried = partial(insist, where=str(run_dir), clock=clock)
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
            work=WorkCounts(
                *(result.num_decoded, result.num_encoded, result.num_computed, result.num_answered)
            ),
        )
        retried(lambda: result.facts.save(storage))
        compact_if_remote(caches, filter(None, (result.facts.features, *plan.caches)))
        return result


def _continued(writer: AnswerWriter, job: Job, built: BuiltJob, storage: Storage) -> Continued:
    """Clips finished by earlier attempts of a run, with the questions that they were asked."""
    cells = [name for name, _ in built.methods]
    done = writer.finished(cells, keep_damaged=job.decode.damaged == "keep")
    try:
        return Continued(done, read_asked(storage) if len(done) else ())
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
    from jobs.estimate import work  # loads pandas

    counts = work.count(plan, questions=False)
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
    pools = job.pools
    if isinstance(pools, str):  # chosen by the timings of earlier runs once the cluster is known
        cells = [work.CellTokens(method.name, method.cache) for method in plan.methods]
        rates = work.measured(locations.output, plan.model, device_name(plan.model.device))
        seconds = work.stage_seconds(counts, cells, rates, answers=plan.answer)
        gpus = plan.model.device != "cpu"
        pools = AutoPools(work=work.work_of(plan, counts, seconds, gpus=gpus))
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
