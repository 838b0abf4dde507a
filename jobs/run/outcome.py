"""What a job did: its clips counted as they come, and a row for everything that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from jobs.results.facts import JobFacts, WorkCounts
from jobs.run.progress import is_decoded
from pipeline.redaction import redacted
from pipeline.rows import Result, Row
from pipeline.statuses import FAILED, has_failed, is_failed

FAILURE = pa.schema(
    [
        (name, pa.string())
        for name in ("benchmark", "video_id", "question_id", "cell", "path", "status", "error")
    ]
)


@dataclass(frozen=True)
class JobResult:
    """What a job did.

    Attributes:
        facts: What the run says about itself.
        num_clips: Clips that went through the pipeline in this attempt.
        num_failed_clips: Of those, clips with any failure.
        num_decoded: Clips that were decoded.
        num_encoded: Clips that were encoded.
        num_hits: (clip, compressor) pairs found in the cache.
        num_computed: (clip, compressor) pairs computed.
        num_answered: Answers given.
        num_missing: Planned answers that were not in the run's files at the end; they are there as
            failed rows now.
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
    """The counts and failures of one attempt, which grow with every clip.

    Args:
        num_caches: Token caches that every clip is looked up in.

    Attributes:
        failures: Rows of `FAILURE`.
    """

    def __init__(self, num_caches: int) -> None:
        self.failures: list[Row] = []
        self._num_caches = num_caches
        names = ("clips", "failed_clips", "decoded", "encoded", "hits", "computed", "answered")
        self._counts = dict.fromkeys((*names, "missing"), 0)

    def add(self, result: Result) -> None:
        """Count a clip that is through: a `rows.RESULT`."""
        self.failures += _failures(result)
        counts = self._counts
        counts["clips"] += 1
        counts["failed_clips"] += has_failed(result)
        counts["decoded"] += is_decoded(result)
        counts["encoded"] += result.encode_ms is not None
        counts["answered"] += sum(not is_failed(answer) for answer in result.answers)
        if result.status == "ok":
            counts["hits"] += self._num_caches - result.num_misses
            counts["computed"] += result.num_computed

    def add_missing(self, answers: Sequence[Row]) -> None:
        """Count the planned answers that were not in the run's files."""
        self.failures += [_failure(answer, None) for answer in answers]
        self._counts["missing"] += len(answers)

    def work(self) -> WorkCounts:
        """The counts that the run's facts hold."""
        counts = self._counts
        return WorkCounts(
            counts["decoded"], counts["encoded"], counts["computed"], counts["answered"]
        )

    def result(self, facts: JobFacts) -> JobResult:
        """What the job did, with what its run says about itself."""
        return JobResult(facts, **{f"num_{name}": count for name, count in self._counts.items()})


def _failures(result: Result) -> list[Row]:
    """One row for a failed clip, or one for each of its failed answers."""
    path = redacted(result.path)
    about = {
        "benchmark": result.benchmark,
        "video_id": result.video_id,
        "path": path,
    }
    if result.status != "ok":
        return [{**about, "status": result.status, "error": result.error}]
    return [_failure(answer, path) for answer in result.answers if answer["status"] in FAILED]


def _failure(answer: Row, path: str | None) -> Row:
    """The row of `FAILURE` of one answer; the path is unknown for an answer that is missing."""
    return {**{name: answer.get(name) for name in FAILURE.names}, "path": path}
