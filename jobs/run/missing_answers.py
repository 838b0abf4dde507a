"""The count at the end of a run: every planned answer is in its files, or is named and failed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from jobs.config.recipe import Job
from jobs.run.build import BuiltJob, items_of
from pipeline.answers import AnswerName, AnswerWriter
from pipeline.methods import PlannedMethod
from pipeline.plan import Plan
from pipeline.rows import Row
from tango_core.types import Question

logger = logging.getLogger(__name__)

_NAMED = 5
_WHY = "no answer was found at the end of the run; --resume asks again"


def add_missing(job: Job, built: BuiltJob, plan: Plan, writer: AnswerWriter) -> list[Row]:
    """Compare the answers on disk with the job, and write a failed row for each that is missing.

    Without these rows a table would count fewer questions than the job has, and no failure.

    Args:
        job: The recipe.
        built: What it names.
        plan: Of the job.
        writer: Has written everything that was answered.

    Returns:
        The rows that were added.
    """
    missing = writer.missing(_expected(job, built, plan))
    if not missing:
        return []
    from pipeline.stages.answer import unanswered  # loads the language models' code

    rows = [
        unanswered(name[:2], planned, question, built.benchmarks[name[0]].protocol, _WHY)
        for name, (planned, question) in missing.items()
    ]
    named = ", ".join(" / ".join(name) for name in list(missing)[:_NAMED])
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
    return rows


def _expected(
    job: Job, built: BuiltJob, plan: Plan
) -> Iterator[tuple[AnswerName, tuple[PlannedMethod, Question]]]:
    """Every answer that the job asks for."""
    for benchmark, item in items_of(job, built):
        for question in item.questions:
            for planned in plan.methods:
                name = (benchmark, item.video_id, planned.name, question.id)
                yield name, (planned, question)
