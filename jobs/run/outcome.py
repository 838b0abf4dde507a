"""Counts, failures and facts of a job."""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from jobs.config.recipe import Job
from jobs.results.facts import CellFacts, JobFacts, ShardSize, WorkCounts
from jobs.run.build import BuiltJob, device_name, items_of
from jobs.run.progress import is_decoded
from pipeline.clips import FAILED
from pipeline.plan import Plan, PlannedMethod
from pipeline.progress.answers import AnswerWriter
from pipeline.redaction import redacted
from pipeline.rows import AnswerRow, Result
from tango_core.benchmarks import Benchmark
from tango_core.ops.precision import float32_products

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
        self.failures += _failures(result)
        self.num_clips += 1
        self.num_failed_clips += result.has_failed
        self.num_decoded += is_decoded(result)
        self.num_encoded += result.encode_ms is not None
        self.num_answered += sum(not answer.has_failed for answer in result.answers)
        if result.status == "ok":
            self.num_hits += self.num_caches - result.num_misses
            self.num_computed += result.num_computed

    def add_missing(self, answers: Sequence[AnswerRow]) -> None:
        """Count planned answers that are missing in the run's files."""
        self.failures += [_failure(answer, None) for answer in answers]
        self.num_missing += len(answers)

    def work(self) -> WorkCounts:
        """The counts for the run's facts."""
        return WorkCounts(self.num_decoded, self.num_encoded, self.num_computed, self.num_answered)

    def counts(self) -> dict[str, int]:
        """All counts by their names."""
        return {name: n for name, n in vars(self).items() if name.startswith("num_")}


def _failures(result: Result) -> list[dict[str, Any]]:
    """One row for a failed clip, or one for each of its failed answers."""
    path = redacted(result.path)
    about = {"benchmark": result.benchmark, "video_id": result.video_id, "path": path}
    if result.status != "ok":
        return [{**about, "status": result.status, "error": result.error}]
    return [_failure(answer, path) for answer in result.answers if answer.status in FAILED]


def _failure(answer: AnswerRow, path: str | None) -> dict[str, Any]:
    """The `FAILURE` row of one answer; the path of a missing answer is unknown (`None`)."""
    return {name: getattr(answer, name, path) for name in FAILURE.names}


logger = logging.getLogger(__name__)

_MAX_LISTED = 5
_WHY = "no answer was found at the end of the run; run again with --resume"


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
    from pipeline.stages.answer_rows import unanswered  # loads the language models' code

    rows = [
        unanswered(
            (benchmark, item.video_id),
            planned[cell],
            question,
            built.benchmarks[benchmark].protocol,
            _WHY,
        )
        for benchmark, item, cell, question in missing
    ]
    named = ", ".join(
        f"{benchmark} / {item.video_id} / {cell} / {question.id}"
        for benchmark, item, cell, question in missing[:_MAX_LISTED]
    )
    more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    logger.warning(
        "%d planned answer(s) are missing and count as failed: %s%s (benchmark / video / cell / "
        "question); --resume retries them",
        len(missing),
        named,
        more,
    )
    writer.add(rows)
    writer.flush()
    return rows


Kind = Literal["evaluate", "sweep", "precompute"]


def facts_of_job(
    job: Job,
    built: BuiltJob,
    plan: Plan,
    kind: Kind,
    run_id: str,
    cache_root: str,
    *,
    started_at: datetime,
    wall_s: float | None,
    shards: tuple[ShardSize, ...],
    num_answers: int | None,
    work: WorkCounts,
) -> JobFacts:
    """Collect the facts of a job.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        plan: Plan of the job.
        kind: The command.
        run_id: Name of the run directory.
        cache_root: Directory or URL of the token caches.
        started_at: Start time of this driver.
        wall_s: Seconds since then; `None` for a continued run.
        shards: Sizes of all shards if the job is one of several.
        num_answers: Number of rows in `answers/`; `None` if the job answers no questions.
        work: Counts of decoded, encoded, computed and answered items.
    """
    model = built.model
    rules = [one.protocol.subtitles for one in built.benchmarks.values()]
    notes = [model.note, *(rule.note for rule in rules if rule is not None)]
    return JobFacts(
        run_id=run_id,
        kind=kind,
        model=model.name,
        cells=tuple(
            _facts_of_cell(benchmark, planned, model.llm.num_layers)
            for benchmark in built.benchmarks.values()
            for planned in plan.methods
        ),
        mode=job.mode,
        llm=model.llm,
        wall_s=wall_s,
        started_at=started_at.isoformat(timespec="seconds"),
        note="; ".join(note for note in notes if note),
        git_commit=git_commit(),
        caches=tuple(plan.caches),
        cache_root=cache_root,
        device=device_name(model.device),
        num_frames=model.frames.num_frames,
        checkpoint=model.digest,
        dtype=model.dtype,
        versions=versions(),
        float32_products=float32_products(),
        skipped=built.skipped,
        shards=shards,
        input_size=model.options.input_size(),
        num_answers=num_answers,
        features=plan.features.cache.name if plan.features else "",
        work=work,
    )


def _facts_of_cell(benchmark: Benchmark, planned: PlannedMethod, num_layers: int) -> CellFacts:
    """Collect the facts of one method on one benchmark."""
    pruner = planned.method.pruner
    options = {k: v for k, v in planned.method.options.items() if k != "retention"}
    return CellFacts(
        name=planned.name,
        benchmark=benchmark.name,
        method=planned.method.name,
        retention=planned.retention,
        options=options,
        layer_shares=pruner.layer_shares(num_layers) if pruner else None,
        protocol=benchmark.protocol.name,
        cache=planned.cache,
        reads_question=planned.method.compressor.question_field is not None,
    )


LIBRARIES = (
    "tango-video",
    "ray",
    "torch",
    "transformers",
    "av",
    "decord",
    "pyarrow",
    "pandas",
    "mlflow",
    "numpy",
)


def git_commit() -> str:
    """Commit of the code, or "" outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
