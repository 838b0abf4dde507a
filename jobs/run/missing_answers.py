"""The count at the end of a run: every planned answer is in its files, or is named and failed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from jobs.config.recipe import Job
from jobs.run.build import BuiltJob
from jobs.run.planning import items_of
from pipeline.plan import Plan
from pipeline.progress.answers import AnswerWriter
from pipeline.rows import Row
from tango_core.types import VideoItem

logger = logging.getLogger(__name__)

_NAMED = 5
_WHY = "no answer was found at the end of the run; --resume asks again"


def add_missing(
    job: Job, built: BuiltJob, plan: Plan, writer: AnswerWriter
) -> tuple[list[Row], int]:
    """Compare the answers on disk with the job, and write a failed row for each that is missing.

    Without these rows a table would count fewer questions than the job has, and no failure.

    Args:
        job: The recipe.
        built: What it names.
        plan: Of the job.
        writer: Has written everything that was answered.

    Returns:
        The rows that were added, and how many answers the job has.
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
        for benchmark, item, cell, question in missing[:_NAMED]
    )
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    logger.warning(
        "%d planned answer(s) are missing and count as failed: %s%s (benchmark / video / cell / "
        "question); --resume asks them again",
        len(missing),
        named,
        more,
    )
    writer.add(rows)
    writer.flush()
    return rows, num_answers
