"""Count finished clips and collect a row for every failure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobs.config.recipe import Job
from jobs.results.facts import JobFacts, WorkCounts
from jobs.run.build import BuiltJob
from jobs.run.planning import items_of
from jobs.run.progress import is_decoded
from pipeline.clips import FAILED
from pipeline.plan import Plan
from pipeline.progress.answers import AnswerWriter
from pipeline.redaction import redacted
from pipeline.rows import AnswerRow, Result
from tango_core.types import VideoItem

FAILURE = pa.schema(
    [
        (name, pa.string())
        for name in ("benchmark", "video_id", "question_id", "cell", "path", "status", "error")
    ]
)


@dataclass(frozen=True)
class JobResult:
    """Facts and counts of a finished job.

    Attributes:
        facts: Facts of the run.
        num_clips: Clips processed in this attempt.
        num_failed_clips: Number of these clips with any failure.
        num_decoded: Decoded clips.
        num_encoded: Encoded clips.
        num_hits: (clip, compressor) pairs found in the cache.
        num_computed: (clip, compressor) pairs computed.
        num_answered: Successful answers.
        num_missing: Planned answers that were missing in the run's files at the end, and for which
            failed rows were added.
    """

    facts: JobFacts
    num_clips: int = 0
    num_failed_clips: int = 0
    num_decoded: int = 0
    num_encoded: int = 0
    num_hits: int = 0
    num_computed: int = 0
    num_answered: int = 0
    num_missing: int = 0


class Outcome:
    """Counts and failures of one attempt, updated with every clip.

    Args:
        num_caches: Number of token caches in which every clip is looked up.

    Attributes:
        failures: Rows of `FAILURE`.
    """

    def __init__(self, num_caches: int) -> None:
        self.failures: list[dict[str, Any]] = []
        self._num_caches = num_caches
        names = ("clips", "failed_clips", "decoded", "encoded", "hits", "computed", "answered")
        self._counts = dict.fromkeys((*names, "missing"), 0)

    def add(self, result: Result) -> None:
        """Count a finished clip (`rows.RESULT`)."""
        self.failures += _failures(result)
        counts = self._counts
        counts["clips"] += 1
        counts["failed_clips"] += result.has_failed
        counts["decoded"] += is_decoded(result)
        counts["encoded"] += result.encode_ms is not None
        counts["answered"] += sum(not answer.has_failed for answer in result.answers)
        if result.status == "ok":
            counts["hits"] += self._num_caches - result.num_misses
            counts["computed"] += result.num_computed

    def add_missing(self, answers: Sequence[AnswerRow]) -> None:
        """Count planned answers that are missing in the run's files."""
        self.failures += [_failure(answer, None) for answer in answers]
        self._counts["missing"] += len(answers)

    def work(self) -> WorkCounts:
        """The counts for the run's facts."""
        counts = self._counts
        return WorkCounts(
            counts["decoded"], counts["encoded"], counts["computed"], counts["answered"]
        )

    def result(self, facts: JobFacts) -> JobResult:
        """Combine the counts with the facts of the run."""
        return JobResult(facts, **{f"num_{name}": count for name, count in self._counts.items()})


def _failures(result: Result) -> list[dict[str, Any]]:
    """One row for a failed clip, or one for each of its failed answers."""
    path = redacted(result.path)
    about = {
        "benchmark": result.benchmark,
        "video_id": result.video_id,
        "path": path,
    }
    if result.status != "ok":
        return [{**about, "status": result.status, "error": result.error}]
    return [_failure(answer, path) for answer in result.answers if answer.status in FAILED]


def _failure(answer: AnswerRow, path: str | None) -> dict[str, Any]:
    """The `FAILURE` row of one answer; the path of a missing answer is unknown (`None`)."""
    return {**{name: getattr(answer, name, None) for name in FAILURE.names}, "path": path}


logger = logging.getLogger(__name__)

_MAX_LISTED = 5
_WHY = "no answer was found at the end of the run; run again with --resume"


def add_missing(
    job: Job, built: BuiltJob, plan: Plan, writer: AnswerWriter
) -> tuple[list[AnswerRow], int]:
    """Compare the written answers with the job, and add a failed row for each missing one.

    Without these rows the tables would count fewer questions and show no failure.

    Args:
        job: The recipe.
        built: The job's benchmarks, model and methods.
        plan: Plan of the job.
        writer: The writer; all answers have been flushed.

    Returns:
        The added rows, and the number of answers that the job has.
    """
    planned = {method.name: method for method in plan.methods}
    num_questions = 0

    def counted() -> Iterator[tuple[str, VideoItem]]:
        nonlocal num_questions
        for benchmark, item in items_of(job, built):
            num_questions += len(item.questions)
            yield benchmark, item

    missing = writer.missing(counted(), list(planned))
    num_answers = num_questions * len(planned)
    if not missing:
        return [], num_answers
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
    return rows, num_answers
