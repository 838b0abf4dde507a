"""Declarations of the pipeline's stages.

They are used by the executors, by the check of the pools before a job starts, and wherever statuses
are listed. This module imports neither torch nor Ray, so that commands that only need a status
start fast.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.resources.devices import placed
from pipeline.rows import CLIP, DECODED, ENCODED, RESULT, Clip, Result, result_of
from pipeline.statuses import ANSWER_FAILED, DECODE_FAILED, ENCODE_FAILED

if TYPE_CHECKING:
    from pipeline.plan import Plan
    from pipeline.settings import Settings

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline.

    Attributes:
        name: Name of the stage and of its workers in `pools`.
        code: `module:name` of a function, which runs as tasks, or of a class, whose instances hold
            a model and run as actors. Both convert a row to a row. Imported in the workers.
        arguments: Computes the keyword arguments of `code`, besides the row, from the plan and the
            settings.
        input: Columns of the rows it takes.
        output: Columns of the rows it returns.
        failure: Status of rows that failed in this stage.
        on_hits: Whether fully cached clips go through the stage as well. Jobs that only fill
            caches skip such stages.
        profile_code: Replaces `code` in a job that measures latencies; `None` for `code`.
    """

    name: str
    code: str
    arguments: Callable[[Plan, Settings], Arguments]
    input: pa.Schema
    output: pa.Schema
    failure: str
    on_hits: bool = False
    profile_code: str | None = None

    def takes(self, clip: Clip) -> bool:
        """Whether a clip goes through it."""
        return self.on_hits or bool(clip.encode)

    def taken(self, clips: pa.Table) -> pa.ChunkedArray:
        """Apply `takes` to every row of a table."""
        if self.on_hits:
            return pc.is_valid(clips["status"])
        return pc.greater(pc.list_value_length(clips["encode"]), 0)

    def load(self, *, profile: bool = False) -> Callable[..., Any]:
        """Import the function or the class."""
        loaded: Callable[..., Any] = pkgutil.resolve_name(
            (self.profile_code if profile else None) or self.code
        )
        return loaded

    def start(self, plan: Plan, settings: Settings) -> Callable[[Clip], Any]:
        """Create the stage in this process; loads the model of an actor."""
        loaded, arguments = self.load(profile=settings.profile), self.arguments(plan, settings)
        return loaded(**arguments) if isinstance(loaded, type) else partial(loaded, **arguments)


def _decode_arguments(plan: Plan, settings: Settings) -> Arguments:
    """Arguments of `decode_video`."""
    return {
        "spec": plan.model.frames,
        "timeout_s": settings.decode_timeout_s,
        "memory_gib": settings.decode_memory_gib,
        # Damaged clips are not cached, so a job that only fills caches must not keep them.
        "keep_damaged": settings.keep_damaged and plan.answer,
        "videos": settings.videos,
    }


def _compress_arguments(plan: Plan, settings: Settings) -> Arguments:
    """Arguments of `CompressVideo`."""
    return {
        "model": placed(plan.model, settings, "compress"),
        "compressors": plan.compressors,
        "caches": plan.caches,
        "features": plan.features,
        "num_threads": settings.pools.compress.num_threads,
    }


def _answer_arguments(plan: Plan, settings: Settings) -> Arguments:
    """Arguments of `AnswerQuestions`."""
    return {
        "model": placed(plan.model, settings, "answer"),
        "methods": plan.methods,
        "caches": plan.caches,
        "features": plan.features,
        "protocols": plan.protocols,
        "share_prefix": settings.share_prefix,
        "batch_tokens": 1 if settings.profile else settings.batch_tokens,
        "num_threads": settings.pools.answer.num_threads,
    }


DECODE_VIDEO = Stage(
    name="decode",
    code="pipeline.stages.decode:decode_video",
    arguments=_decode_arguments,
    input=CLIP,
    output=DECODED,
    failure=DECODE_FAILED,
)
COMPRESS_VIDEO = Stage(
    name="compress",
    code="pipeline.stages.compress:CompressVideo",
    arguments=_compress_arguments,
    input=DECODED,
    output=ENCODED,
    failure=ENCODE_FAILED,
    profile_code="pipeline.stages.profile:ProfileCompression",
)
ANSWER_QUESTIONS = Stage(
    name="answer",
    code="pipeline.stages.answer:AnswerQuestions",
    arguments=_answer_arguments,
    input=ENCODED,
    output=RESULT,
    failure=ANSWER_FAILED,
    on_hits=True,
    profile_code="pipeline.stages.profile:ProfileAnswers",
)

STAGES = (DECODE_VIDEO, COMPRESS_VIDEO, ANSWER_QUESTIONS)
"""All stages in the order of the pipeline; those with `on_hits` come last."""


def filled(clip: Clip) -> Result:
    """The result of a clip in a job that only fills caches.

    The clip fails if any method failed, because there are no answers to record it.
    """
    errors = json.loads(clip.compress_errors or "{}")
    if errors and clip.status == "ok":
        clip = failed_by_methods(clip, errors)
    return result_of(clip, [])


def failed_by_methods(clip: Clip, errors: Mapping[str, str]) -> Clip:
    """Mark a clip as failed because methods failed; equal reasons are stated once.

    Args:
        clip: The clip.
        errors: Cache name -> reason.
    """
    same = len(set(errors.values())) == 1
    reasons = list(errors.values())[:1] if same else [f"{n}: {why}" for n, why in errors.items()]
    return clip.failed(COMPRESS_VIDEO.failure, "; ".join(reasons))


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """The stages of a plan: all, or only those that fill caches."""
    return tuple(stage for stage in STAGES if plan.answer or not stage.on_hits)
