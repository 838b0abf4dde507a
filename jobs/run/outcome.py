"""Counts, failures and facts of a job."""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from jobs.config.recipe import Job
from jobs.results.facts import CellFacts, JobFacts, WorkCounts
from jobs.run.build import BuiltJob, device_name, items_of
from pipeline.clips import DECODE_VIDEO, FAILED
from pipeline.plan import Plan, PlannedMethod
from pipeline.progress.answers import AnswerWriter
from pipeline.redaction import redacted
from pipeline.rows import AnswerRow, Result
from tango_core.benchmarks import Benchmark
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
        path = redacted(result.path)
        failed = [answer for answer in result.answers if answer.status in FAILED]
        failures = [_failure(answer, path) for answer in failed]
        if result.status != "ok":
            failures = [_failure(result, path)]
        self.failures += failures
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
        self.failures += [_failure(answer, None) for answer in answers]
        self.num_missing += len(answers)

    def work(self) -> WorkCounts:
        """The counts for the run's facts."""
        return WorkCounts(self.num_decoded, self.num_encoded, self.num_computed, self.num_answered)

    def counts(self) -> dict[str, int]:
        """All counts by their names."""
        return {name: n for name, n in vars(self).items() if name.startswith("num_")}


def _failure(row: AnswerRow | Result, path: str | None) -> dict[str, Any]:
    return {**{name: getattr(row, name, None) for name in FAILURE.names}, "path": path}


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
    rows = [
        unanswered(
            (benchmark, item.video_id),
            planned[cell],
            question,
            built.benchmarks[benchmark].protocol,
            why,
        )
        for benchmark, item, cell, question in missing
    ]
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
