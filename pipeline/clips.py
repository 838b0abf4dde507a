"""Clips, and the stages that they pass through.

To add a stage, add its fields to `Clip`, its pool to `Pools` and its declaration to `STAGES`; its
code is a module of `pipeline/stages`. This module imports neither pyarrow, torch nor Ray, so that
commands that only need a recipe or a status start fast.
"""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.redaction import redacted
from pipeline.resources.pools import ActorPool, TaskPool, placed
from pipeline.storage.urls import is_url
from tango_core.printable import printable
from tango_core.types import Question, Subtitles, VideoFrames, VideoItem

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.plan import Plan
    from pipeline.settings import Settings


# One for all clips: three more objects per clip would make planning a fifth slower.
_EMPTY: Mapping[str, Any] = {}


def _empty() -> Mapping[str, Any]:
    return _EMPTY


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip that passes through the stages.

    A failed clip has a `status` other than `ok`: every stage passes it on unchanged.

    Attributes:
        benchmark: Name of the benchmark.
        video_id: Id of the video in the benchmark.
        path: Absolute path or URL; workers may run in another directory.
        clip_start: Start in seconds; `None` together with `clip_end` for the whole file.
        clip_end: End in seconds.
        clip_key: Key of the clip in all caches; empty if the file cannot be read.
        source_fingerprint: Fingerprint of the file.
        source_version: With `hash_content`, also the fingerprint by size and time, which a worker
            can check without reading the file; else `None`.
        questions: JSON; see `questions_of`.
        subtitles: JSON; `None` if prompts contain no subtitles.
        missing: Names of the token caches that do not hold the clip.
        encode: Tokens and signals to encode; if empty, the clip is not decoded.
        stored: Parts of the clip in the feature cache.
        status: `"ok"`, or the failure status of a stage.
        error: One-line reason of the failure.
        store_fault: Storage error that a stage met.
        decode_video_ms: Time to decode the clip.
        warnings: Warnings of the decoder.
        damage: Reasons why the frames may differ from the undamaged video.
        frames: The decoded frames, until they are encoded.
        encode_ms: Time of the vision encoder.
        encode_tflops: Its floating-point operations in 10^12; `None` if unknown.
        compress_ms: Cache name -> time of its method, `None` if that comes later.
        compress_errors: Cache name -> why its method failed.
        profile: What `ProfileCompression` measured.
    """

    benchmark: str
    video_id: str
    path: str = ""
    clip_start: float | None = None
    clip_end: float | None = None
    clip_key: str = ""
    source_fingerprint: str = ""
    source_version: str | None = None
    questions: str = "[]"
    subtitles: str | None = None
    missing: Sequence[str] = ()
    encode: Sequence[str] = ()
    stored: Sequence[str] | None = ()
    status: str = "ok"
    error: str | None = None
    store_fault: str | None = None
    decode_video_ms: float | None = None
    warnings: Sequence[str] | None = None
    damage: Sequence[str] | None = None
    frames: VideoFrames | None = None
    encode_ms: float | None = None
    encode_tflops: float | None = None
    compress_ms: Mapping[str, float | None] = field(default_factory=_empty)
    compress_errors: Mapping[str, str] = field(default_factory=_empty)
    profile: Mapping[str, Mapping[str, float]] = field(default_factory=_empty)

    @property
    def name(self) -> tuple[str, str]:
        """Benchmark and video id."""
        return self.benchmark, self.video_id

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Start and end in seconds; `None` for the whole file."""
        return bounds(vars(self))

    def failed(self, status: str, error: object) -> Clip:
        """Copy of the clip with a failure status and a one-line reason."""
        return replace(self, status=status, error=one_line(str(error) or type(error).__name__))

    def failed_by_methods(self, errors: Mapping[str, str]) -> Clip:
        """Copy of the clip that failed because methods failed; equal reasons are stated once.

        Args:
            errors: Cache name -> reason.
        """
        same = len(set(errors.values())) == 1
        reasons = list(errors.values())[:1] if same else [f"{n}: {e}" for n, e in errors.items()]
        return self.failed(COMPRESS_VIDEO.failure, "; ".join(reasons))


def clip_of(
    benchmark: str,
    item: VideoItem,
    key: str = "",
    fingerprint: str = "",
    version: str | None = None,
) -> Clip:
    """Build a clip without any information from the caches."""
    start, end = item.clip if item.clip is not None else (None, None)
    # Questions are JSON, which is simpler to pass on than nested list columns.
    questions = [_packed(question) for question in item.questions]
    return Clip(
        benchmark=benchmark,
        video_id=item.video_id,
        path=item.path if is_url(item.path) else os.path.join(os.getcwd(), item.path),
        clip_start=start,
        clip_end=end,
        clip_key=key,
        source_fingerprint=fingerprint,
        source_version=version,
        questions=_JSON.encode(questions),
        subtitles=None if item.subtitles is None else json.dumps(item.subtitles.text),
    )


_JSON = json.JSONEncoder(ensure_ascii=False)


def bounds(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The clip's bounds in seconds, or `None` for the whole file."""
    return None if row["clip_start"] is None else (row["clip_start"], row["clip_end"])


def questions_of(clip: Clip) -> tuple[Question, ...]:
    """The questions about a clip."""
    return tuple(_unpacked(fields) for fields in json.loads(clip.questions))


def _packed(question: Question) -> dict[str, Any]:
    packed: dict[str, Any] = {**vars(question), "groups": dict(question.groups)}
    # Fields that only some questions have are left out of the others.
    if not question.accepted:
        del packed["accepted"], packed["match"]
    if question.span is None:
        del packed["span"]
    if question.other is None:
        del packed["other"]
    else:
        packed["other"] = _packed(question.other)
    return packed


def _unpacked(packed: Mapping[str, Any]) -> Question:
    fields = dict(packed)
    for name in fields.keys() & {"choices", "accepted", "span"}:
        fields[name] = tuple(fields[name])
    if "other" in fields:
        fields["other"] = _unpacked(fields["other"])
    return Question(**fields)


def subtitles_of(clip: Clip) -> Subtitles | None:
    """The subtitles of a clip; `None` if prompts contain no subtitles."""
    return None if clip.subtitles is None else Subtitles(json.loads(clip.subtitles))


def one_line(reason: str) -> str:
    """Convert a message for a table: one printable line, without secrets, truncated."""
    return printable(redacted(" ".join(reason.split())))[:2000]


@dataclass(frozen=True)
class Pools:
    """Workers of each stage, by the stage's name; never part of the cache identity.

    Attributes:
        decode: CPU tasks.
        compress: Actors with the vision encoder.
        answer: Actors with the language model.
    """

    decode: TaskPool = field(default_factory=TaskPool)
    compress: ActorPool = field(default_factory=ActorPool)
    answer: ActorPool = field(default_factory=ActorPool)


@dataclass(frozen=True)
class Stage:
    """A stage of the pipeline.

    Attributes:
        name: Name of the stage and of its workers in `Pools`.
        code: `module:name` of a function, which runs as tasks, or of a class, whose instances hold
            a model and run as actors. Both convert a clip to a clip. Imported in the workers.
        arguments: Computes the keyword arguments of `code`, besides the clip, from the plan and the
            settings.
        failure: Status of clips that failed in this stage.
        on_hits: Whether fully cached clips go through the stage as well. It returns results instead
            of clips; jobs that only fill caches skip it.
        profile_code: Replaces `code` in a job that measures latencies; `None` for `code`.
    """

    name: str
    code: str
    arguments: Callable[[Plan, Settings], dict[str, Any]]
    failure: str
    on_hits: bool = False
    profile_code: str | None = None

    def takes(self, clip: Clip) -> bool:
        """Whether a clip goes through it."""
        return self.on_hits or bool(clip.encode)

    def taken(self, clips: pa.Table) -> pa.ChunkedArray:
        """Apply `takes` to every row of a table."""
        import pyarrow.compute as pc

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


DECODE_VIDEO = Stage(
    name="decode",
    code="pipeline.stages.decode:decode_video",
    arguments=lambda plan, settings: {
        "spec": plan.model.frames,
        "timeout_s": settings.decode_timeout_s,
        "memory_gib": settings.decode_memory_gib,
        # Damaged clips are not cached, so a job that only fills caches must not keep them.
        "keep_damaged": settings.keep_damaged and plan.answer,
        "videos": settings.videos,
    },
    failure="decode_failed",
)
COMPRESS_VIDEO = Stage(
    name="compress",
    code="pipeline.stages.compress:CompressVideo",
    arguments=lambda plan, settings: {
        "model": placed(plan.model, settings, "compress"),
        "compressors": plan.compressors,
        "caches": plan.caches,
        "features": plan.features,
        "num_threads": settings.pools.compress.num_threads,
    },
    failure="encode_failed",
    profile_code="pipeline.stages.profile:ProfileCompression",
)
ANSWER_QUESTIONS = Stage(
    name="answer",
    code="pipeline.stages.answer:AnswerQuestions",
    arguments=lambda plan, settings: {
        "model": placed(plan.model, settings, "answer"),
        "methods": plan.methods,
        "caches": plan.caches,
        "features": plan.features,
        "protocols": plan.protocols,
        "share_prefix": settings.share_prefix,
        "batch_tokens": 1 if settings.profile else settings.batch_tokens,
        "num_threads": settings.pools.answer.num_threads,
    },
    failure="answer_failed",
    on_hits=True,
    profile_code="pipeline.stages.profile:ProfileAnswers",
)

STAGES = (DECODE_VIDEO, COMPRESS_VIDEO, ANSWER_QUESTIONS)
"""All stages in the order of the pipeline; those with `on_hits` come last."""

DAMAGED = "decode_damaged"
"""Status of a clip in a damaged part of a stream, and of its answers. It is a failure unless the
clip was answered anyway (`decode.damaged: keep`)."""

FAILED = (*(stage.failure for stage in STAGES), DAMAGED)
"""All failure statuses."""


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """The stages of a plan: all, or only those that fill caches."""
    return tuple(stage for stage in STAGES if plan.answer or not stage.on_hits)
